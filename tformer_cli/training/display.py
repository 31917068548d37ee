"""The progress of a training at a terminal."""

import sys
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from tqdm import tqdm

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.evaluation.likelihood import perplexity
from tformer_cli.evaluation.metrics import Score
from tformer_cli.plotting.braille import draw_chart
from tformer_cli.plotting.curves import Point, curve_values
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.terminal import fitted, num_columns
from tformer_cli.training.sinks import logged
from tformer_cli.training.step import StepReport

STEPS_FORMAT = "step {n_fmt}/{total_fmt} {percentage:3.0f}% |{bar}| {remaining} left"

# Rows of a live curve, and columns between two.
CURVE_HEIGHT = 8
COLUMN_GAP = "  "
# The loss below the curves has label smoothing, that of validations has none.
UNSMOOTHED = "loss without label smoothing"


class ProgressDisplay:
    """Two lines at the bottom of a terminal, or nothing.

    The second has the means of the last `report_every` steps, or the progress of a validation:

        step 350/750  47% |█████████████████████████                    | 01:14 left
        loss 1.408  ppl 1.43  acc 94.1%  lr 4.08e-03  10,390 tok/s  best BLEU 91.02
    """

    def __init__(self, training: TrainingConfig, step: int = 0, *, is_shown: bool) -> None:
        self.is_shown = is_shown
        self._recent: deque[StepReport] = deque(maxlen=training.report_every)
        self._best = ""
        self._num_validated = self._num_to_validate = 0
        self._steps: tqdm[Any] = tqdm(
            total=training.max_steps,
            initial=step,
            bar_format=STEPS_FORMAT,
            dynamic_ncols=True,
            smoothing=0.1,
            leave=False,
            disable=not is_shown,
        )
        self._state: tqdm[Any] = tqdm(
            bar_format="{desc}", miniters=1, leave=False, disable=not is_shown
        )
        self._show("the first step")

    def close(self) -> None:
        """Remove both lines."""
        self._state.close()
        self._steps.close()

    def rewind(self, step: int) -> None:
        """Show that the training is after `step` again."""
        self._recent.clear()
        self._steps.n = step
        self._steps.refresh()

    def update(self, report: StepReport) -> None:
        """Show a step, at most ten times a second."""
        self._recent.append(report)
        if self._steps.update():
            self._show(f"{summary(self._recent)}{self._best}")

    def start_validation(self, num_lines: int) -> None:
        """Show that a validation of so many lines begins."""
        self._num_validated, self._num_to_validate = 0, num_lines
        self._steps.refresh()
        self.advance_validation(0)
        self._state.refresh()

    def advance_validation(self, num_lines: int) -> None:
        """Show that so many more lines are validated, at most ten times a second."""
        self._num_validated += num_lines
        self._describe(f"validating {self._num_validated:,}/{self._num_to_validate:,}")
        self._state.update()

    def end_validation(self, best: Score | None) -> None:
        """Show the figures of the steps again, and the best score if there is a new one."""
        if best is not None:
            self._best = f"  best {best.name} {best.score:.2f}"
        self._show(f"{summary(self._recent)}{self._best}" if self._recent else "")

    def _show(self, text: str) -> None:
        self._describe(text)
        self._state.refresh()

    def _describe(self, text: str) -> None:
        if self.is_shown:
            self._state.set_description_str(fitted(text, sys.stderr), refresh=False)


class LiveCurves:
    """Curves of the training loss and of validation BLEU, above the progress at a terminal.

    A masked encoder, which has no BLEU, has a curve of the validation loss.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._curves: dict[str, list[Point]] = {}
        self._lines: list[tqdm[Any]] = [
            tqdm(bar_format="{desc}", leave=False) for _ in range(CURVE_HEIGHT + 2)
        ]
        for numbers in logged(run):
            self._append(numbers)
        self._draw()

    def close(self) -> None:
        """Remove the curves; the highest line, the last one, leaves the cursor at its beginning."""
        for line in reversed(self._lines):
            line.close()

    def add(self, numbers: Mapping[str, Any]) -> None:
        """Draw the curves again, with the numbers of a line of metrics.jsonl."""
        self._append(numbers)
        self._draw()

    def _append(self, numbers: Mapping[str, Any]) -> None:
        for name, value in curve_values(numbers).items():
            self._curves.setdefault(name, []).append((numbers["step"], value))

    def _draw(self) -> None:
        has_bleu = "valid_bleu" in self._curves or "valid_loss" not in self._curves
        validation = "BLEU" if has_bleu else "loss"
        names = {
            UNSMOOTHED: "train_loss",
            f"validation {validation}": f"valid_{validation.lower()}",
        }
        # In the last column some terminals wrap.
        width = (num_columns(sys.stderr) - 1 - len(COLUMN_GAP)) // len(names)
        charts = [
            draw_chart(title, self._curves.get(name, ()), width, CURVE_HEIGHT)
            for title, name in names.items()
        ]
        for line, parts in zip(self._lines, zip(*charts, strict=True), strict=True):
            line.set_description_str(fitted(COLUMN_GAP.join(parts).rstrip(), sys.stderr))


def summary(reports: Collection[StepReport]) -> str:
    """Return the means of some steps, the last learning rate, and the speed."""
    loss, nll, accuracy = (token_mean(reports, name) for name in ("loss", "nll", "accuracy"))
    *_, last = reports
    speed = sum(x.num_tokens for x in reports) / sum(x.seconds for x in reports)
    return (
        f"loss {loss:.3f}  ppl {perplexity(nll):.2f}  acc {accuracy:.1%}  "
        f"lr {last.learning_rate:.2e}  {speed:,.0f} tok/s"
    )


def token_mean(reports: Collection[StepReport], name: str) -> float:
    """Return the mean of a figure of some steps, weighted by their target tokens."""
    total: float = sum(getattr(report, name) * report.num_tokens for report in reports)
    return total / sum(report.num_tokens for report in reports)
