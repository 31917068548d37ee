"""What a training tells: a bar or lines on the screen, train.log, and metrics.jsonl."""

import json
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import torch
from tqdm import tqdm

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.device import peak_memory
from tformer_cli.errors import printable
from tformer_cli.evaluation.evaluate import perplexity
from tformer_cli.json_text import parse_json
from tformer_cli.storage.atomic import storage_errors, write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.step import NonFiniteStep, StepReport
from tformer_cli.training.tensorboard import TensorBoard, summary_writer
from tformer_cli.training.validation import Validation


class TrainingLogger:
    """Follows one sitting of a run.

    A terminal gets a progress bar; anything else gets a line every `report_every` steps. The same
    lines go into train.log, and their numbers into metrics.jsonl, one JSON object a line.
    """

    def __init__(self, run: RunDirectory, training: TrainingConfig) -> None:
        self.run = run
        self.max_steps = training.max_steps
        self.report_every = training.report_every
        self.has_board = training.tensorboard
        self._recent: list[StepReport] = []
        self._has_run_out_of_memory = False
        self._bar: tqdm[Any] | None = None
        self._board: TensorBoard | None = None

    def __enter__(self) -> Self:
        if self.has_board:
            summary_writer()
        with storage_errors(self.run.path):
            self.run.path.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._board is not None:
            self._board.close()

    def log(self, line: str) -> None:
        """Print a line, and keep it in train.log; control characters in it are escaped."""
        line = "\n".join(map(printable, line.split("\n")))
        tqdm.write(line, file=sys.stderr)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        file = self.run.log_file
        with storage_errors(file), file.open("a", encoding="utf-8") as log:
            log.write(f"{stamp} {line}\n")

    def truncate(self, state: TrainingProgress) -> None:
        """Forget what was reported after `state`: those steps will be taken again."""
        self._recent.clear()
        if self.run.metrics_file.exists():
            text = self.run.metrics_file.read_text(encoding="utf-8", errors="replace")
            lines = text.split("\n")
            write_text(self.run.metrics_file, "".join(_lines_until(lines, state)))
        for sample in self.run.samples.glob("step-*.txt"):
            number = sample.stem.removeprefix("step-")
            # Others are somebody's own.
            if number.isdecimal() and int(number) > state.step:
                sample.unlink()
        if self._bar is not None:
            self._bar.n = state.step
            self._bar.refresh()
        if self._board is not None:
            self._board.close()
            self._board = TensorBoard(self.run)

    def start(self, step: int) -> None:
        """Start the bar behind `step`, and the curves."""
        if self.has_board:
            self._board = TensorBoard(self.run)
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=self.max_steps, initial=step, unit="step", dynamic_ncols=True, smoothing=0.1
            )

    def log_step(self, report: StepReport) -> None:
        """Take note of an optimiser step."""
        self._recent.append(report)
        if self._bar is not None:
            self._bar.update()
        if report.num_pieces > 0:
            self._ran_out_of_memory(report)
        if report.step % self.report_every == 0:
            self.flush()

    def log_skipped(self, fault: NonFiniteStep) -> None:
        """Take note of a batch whose loss or gradient was not finite."""
        self._record(
            {
                "kind": "skip",
                "step": fault.step,
                "epoch": fault.group.position.epoch,
                "batch": fault.group.position.batch,
                "loss": str(fault.loss),
                "grad_norm": str(fault.grad_norm),
            }
        )
        self.log(
            f"step {fault.step}: loss {fault.loss}, gradient norm {fault.grad_norm}: "
            "this batch is left out, and the weights stay"
        )

    def log_rollback(self, state: TrainingProgress, from_step: int) -> None:
        """Report that the training tries again from `state`."""
        self._record(
            {
                "kind": "rollback",
                "step": state.step,
                "from_step": from_step,
                "num_rollbacks": state.num_rollbacks,
                "learning_rate_factor": state.learning_rate_factor,
            }
        )
        self.log(
            f"step {from_step}: too many batches in a row were not finite: going back to step "
            f"{state.step}, with {state.learning_rate_factor:g} of the learning rate, "
            "without those batches"
        )

    def flush(self) -> None:
        """Report the steps since the last report, if there are any."""
        if not self._recent:
            return
        reports, self._recent = self._recent, []
        num_tokens = sum(report.num_tokens for report in reports)
        seconds = sum(report.seconds for report in reports)
        last = reports[-1]
        speed = num_tokens / seconds
        nll = sum(report.nll * report.num_tokens for report in reports) / num_tokens
        numbers: dict[str, Any] = {
            "kind": "train",
            "step": last.step,
            "epoch": last.position.epoch,
            "loss": sum(report.loss * report.num_tokens for report in reports) / num_tokens,
            "perplexity": perplexity(nll),
            "accuracy": sum(report.accuracy * report.num_tokens for report in reports) / num_tokens,
            "learning_rate": last.learning_rate,
            "grad_norm": last.grad_norm,
            "loss_scale": last.loss_scale.factor,
            "tokens_per_second": speed,
            "seconds": seconds,
        }
        if last.parts:
            numbers["parts"] = {part: report._asdict() for part, report in last.parts.items()}
        self._record(numbers)
        summary = (
            f"loss {numbers['loss']:.3f}  ppl {numbers['perplexity']:.2f}  "
            f"acc {numbers['accuracy']:.1%}  lr {last.learning_rate:.2e}  {speed:,.0f} tok/s"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(summary)
        else:
            left = (self.max_steps - last.step) * seconds / len(reports)
            self.log(f"step {last.step}/{self.max_steps}  {summary}  ETA {_duration(left)}")

    def log_validation(
        self, step: int, validation: Validation, samples: Iterable[tuple[str, str, str]], best: bool
    ) -> None:
        """Report a validation, and keep its sample translations in samples/."""
        likelihood = validation.likelihood
        numbers: dict[str, object] = {
            "kind": "valid",
            "step": step,
            "loss": likelihood.loss,
            "perplexity": likelihood.perplexity,
            "accuracy": likelihood.accuracy,
        }
        for score in validation.scores:
            numbers |= {score.name.lower(): score.score, "signature": score.signature}
        self._record({**numbers, "is_best": best})
        scores = "".join(f"  {score.name} {score.score:.2f}" for score in validation.scores)
        self.log(
            f"valid {step}  loss {likelihood.loss:.3f}  ppl {likelihood.perplexity:.2f}  "
            f"acc {likelihood.accuracy:.1%}{scores}{'  (best so far)' if best else ''}"
        )
        lines = []
        for source, reference, hypothesis in samples:
            lines += [f"  source      {source}", f"  reference   {reference}"]
            lines += [f"  translation {hypothesis}", ""]
        if lines:
            self.log("\n".join(lines).rstrip())
            write_text(self.run.samples / f"step-{step:06d}.txt", "\n".join(lines))

    def log_end(self, state: TrainingProgress, device: torch.device) -> None:
        """Report the end of a training."""
        speed = state.num_tokens / state.seconds
        if state.step < self.max_steps:
            self.log(
                f"no better validation in the last {state.num_bad_validations}: stopping early"
            )
        self.log(
            f"{self.run.path}: finished; the best checkpoint is step {state.best_step}\n"
            f"{state.step:,} steps in {state.seconds / 60:.1f} minutes, "
            f"{speed:,.0f} target tokens/s, peak memory {peak_memory(device) / 2**20:,.0f} MiB"
        )

    def _ran_out_of_memory(self, report: StepReport) -> None:
        self._record({"kind": "memory", "step": report.step, "num_pieces": report.num_pieces})
        if not self._has_run_out_of_memory:
            self._has_run_out_of_memory = True
            self.log(
                f"step {report.step}: memory ran out; redone in {report.num_pieces} pieces, "
                "and so is every step that needs it; a larger "
                "training.gradient_accumulation_steps saves the time"
            )

    def _record(self, numbers: dict[str, object]) -> None:
        file = self.run.metrics_file
        with storage_errors(file), file.open("a", encoding="utf-8") as metrics:
            metrics.write(json.dumps(numbers) + "\n")
        if self._board is not None:
            self._board.show(numbers)


class NullLogger(TrainingLogger):
    """Tells nothing: where several processes train together, the first speaks for all."""

    def __enter__(self) -> Self:
        return self

    def log(self, line: str) -> None:
        """Log nothing."""

    def truncate(self, state: TrainingProgress) -> None:
        """Leave the files to the first."""

    def start(self, step: int) -> None:
        """Show no bar."""

    def log_validation(
        self, step: int, validation: Validation, samples: Iterable[tuple[str, str, str]], best: bool
    ) -> None:
        """Leave the samples to the first."""

    def _record(self, numbers: dict[str, object]) -> None:
        """Record nothing."""


def _lines_until(lines: list[str], state: TrainingProgress) -> Iterable[str]:
    """Yield the reports in metrics.jsonl up to a state, less one that a kill cut short.

    What the state knows nothing of will come again: a rollback, or a validation at its very step.
    """
    for line in lines:
        try:
            report = parse_json(line)
        except ValueError:
            continue
        match report:
            case {"kind": "rollback", "step": int(step), "num_rollbacks": int(num_rollbacks)}:
                is_known = num_rollbacks <= state.num_rollbacks
            case {"kind": "valid", "step": int(step)}:
                is_known = step < state.step or state.score is not None
            case {"kind": str(kind), "step": int(step)} if kind != "rollback":
                is_known = True
            case _:
                continue
        if step <= state.step and is_known:
            yield f"{line}\n"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
