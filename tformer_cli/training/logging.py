"""What a training reports: lines, train.log, metrics.jsonl, and its sinks."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Self

import torch
from tqdm import tqdm

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.device import peak_memory
from tformer_cli.errors import printable, quantity
from tformer_cli.evaluation.likelihood import perplexity
from tformer_cli.storage.atomic import json_number, parse_json, storage_errors, write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.terminal import colored, fitted, is_terminal
from tformer_cli.training.display import LiveCurves, ProgressDisplay, summary, token_mean
from tformer_cli.training.sinks import Sink, sinks_of
from tformer_cli.training.step import NonFiniteStep, StepReport
from tformer_cli.training.validation import Validation


class TrainingLogger:
    """Reports a training; without a run folder, in all processes but the first, it is silent.

    A terminal shows the progress, below curves if `is_live`; anything else gets a line every
    `report_every` steps. All lines go into train.log, and their numbers into metrics.jsonl, one
    JSON object per line, and into the sinks of the config.
    """

    def __init__(
        self, run: RunDirectory | None, training: TrainingConfig, *, is_live: bool = False
    ) -> None:
        self.run = run
        self.training = training
        self.is_live = is_live
        self.max_steps = training.max_steps
        self._reports: list[StepReport] = []
        self._has_run_out_of_memory = False
        self._display = ProgressDisplay(training, is_shown=False)
        self._sink_types: list[type[Sink]] = []
        self._sinks: list[Sink] = []

    def __enter__(self) -> Self:
        if self.run is not None:
            live = [LiveCurves] if self.is_live and is_terminal(sys.stderr) else []
            self._sink_types = [*sinks_of(self.training), *live]
            with storage_errors(self.run.path):
                self.run.path.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._display.close()
        self._close_sinks()

    def log(self, line: str) -> None:
        """Print a line, and append it to train.log; control characters are escaped."""
        if self.run is None:
            return
        line = _escaped(line)
        tqdm.write(line, file=sys.stderr)
        self._append(line)

    def _append(self, line: str) -> None:
        """Append a line to train.log."""
        assert self.run is not None
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        file = self.run.log_file
        with storage_errors(file), file.open("a", encoding="utf-8") as log:
            log.write(f"{stamp} {line}\n")

    def start(self, step: int) -> None:
        """Show the progress from `step` on, and open the sinks."""
        if self.run is None:
            return
        self._sinks = [sink(self.run) for sink in self._sink_types]
        self._display = ProgressDisplay(self.training, step, is_shown=is_terminal(sys.stderr))

    def truncate(self, progress: TrainingProgress) -> None:
        """Remove reports and samples after `progress`: those steps are taken again."""
        if self.run is None:
            return
        self._reports.clear()
        if self.run.metrics_file.exists():
            text = self.run.metrics_file.read_text(encoding="utf-8", errors="replace")
            lines = text.split("\n")
            write_text(self.run.metrics_file, "".join(_lines_until(lines, progress)))
        for sample in self.run.samples.glob("step-*.txt"):
            number = sample.stem.removeprefix("step-")
            # Other names are the user's own.
            if number.isdecimal() and int(number) > progress.step:
                sample.unlink()
        self._display.rewind(progress.step)
        if self._sinks:
            self._close_sinks()
            self._sinks = [sink(self.run) for sink in self._sink_types]

    def _close_sinks(self) -> None:
        while self._sinks:
            self._sinks.pop().close()

    def log_step(self, report: StepReport) -> None:
        self._reports.append(report)
        self._display.update(report)
        if report.num_oom_micro_batches > 0:
            num_pieces = report.num_oom_micro_batches
            self._record({"kind": "memory", "step": report.step, "num_pieces": num_pieces})
            if not self._has_run_out_of_memory:
                self._has_run_out_of_memory = True
                self.log(
                    f"step {report.step}: memory ran out; redone in {num_pieces} pieces, as is "
                    "every step that needs it; a larger training.gradient_accumulation_steps saves "
                    "the time"
                )
        if report.step % self.training.report_every == 0:
            self.flush()

    def flush(self) -> None:
        """Report the steps since the last report, if there are any."""
        if not self._reports:
            return
        reports, self._reports = self._reports, []
        last = reports[-1]
        seconds = sum(report.seconds for report in reports)
        numbers: dict[str, Any] = {
            "kind": "train",
            "step": last.step,
            "epoch": last.next_position.epoch,
            "loss": token_mean(reports, "loss"),
            "perplexity": perplexity(token_mean(reports, "nll")),
            "accuracy": token_mean(reports, "accuracy"),
            "learning_rate": last.learning_rate,
            "grad_norm": last.grad_norm,
            "loss_scale": last.loss_scale.factor,
            "tokens_per_second": sum(report.num_tokens for report in reports) / seconds,
            "seconds": seconds,
        }
        if last.divergence is not None:
            numbers["divergence"] = token_mean(reports, "divergence")
        if last.parts:
            numbers["parts"] = {part: report._asdict() for part, report in last.parts.items()}
        self._record(numbers)
        left = (self.max_steps - last.step) * seconds / len(reports)
        eta = tqdm.format_interval(round(left)).removeprefix("0")
        line = f"step {last.step}/{self.max_steps}  {summary(reports)}  ETA {eta}"
        if not self._display.is_shown:
            self.log(line)
        elif self.run is not None:
            self._append(line)

    def start_validation(self, num_lines: int) -> None:
        """Show that the validation of so many lines begins."""
        self._display.start_validation(num_lines)

    def advance_validation(self, num_lines: int) -> None:
        """Show that so many more lines are validated."""
        self._display.advance_validation(num_lines)

    def log_skipped(self, step: NonFiniteStep) -> None:
        position = step.batch.position
        self._record(
            {
                "kind": "skip",
                "step": step.step,
                "epoch": position.epoch,
                "batch": position.batch,
                "loss": str(step.loss),
                "grad_norm": str(step.grad_norm),
            }
        )
        self.log(
            f"step {step.step}: loss {step.loss}, gradient norm {step.grad_norm}: "
            "batch skipped, weights unchanged"
        )

    def log_rollback(self, progress: TrainingProgress, from_step: int) -> None:
        """Report that the training tries again from `progress`."""
        self._record(
            {
                "kind": "rollback",
                "step": progress.step,
                "from_step": from_step,
                "num_rollbacks": progress.num_rollbacks,
                "learning_rate_factor": progress.learning_rate_factor,
            }
        )
        self.log(
            f"step {from_step}: too many consecutive batches were not finite: rolling back to "
            f"step {progress.step} with {progress.learning_rate_factor:g} of the learning rate, "
            "skipping those batches"
        )

    def log_validation(
        self, step: int, validation: Validation, samples: Iterable[tuple[str, str, str]], best: bool
    ) -> None:
        """Report a validation, and write samples (source, reference, translation) into samples/."""
        if self.run is None:
            return
        likelihood = validation.likelihood
        numbers: dict[str, object] = {
            "kind": "valid",
            "step": step,
            "loss": json_number(likelihood.loss),
            "perplexity": json_number(likelihood.perplexity),
            "accuracy": likelihood.accuracy,
        }
        for score in validation.scores:
            numbers |= {score.name.lower(): score.score, "signature": score.signature}
        if validation.directions:
            numbers["directions"] = {
                name: {"loss": json_number(each.likelihood.loss)}
                | {score.name.lower(): score.score for score in each.scores}
                for name, each in validation.directions.items()
            }
        self._record({**numbers, "is_best": best})
        scores = "".join(f"  {score.name} {score.score:.2f}" for score in validation.scores)
        scores += "".join(
            f"  {name} {each.scores[0].score:.2f}" for name, each in validation.directions.items()
        )
        line = (
            f"valid {step}  loss {likelihood.loss:.3f}  ppl {likelihood.perplexity:.2f}  "
            f"acc {likelihood.accuracy:.1%}{scores}{'  (best so far)' if best else ''}"
        )
        self._append(line)
        tqdm.write(colored(line, "green", sys.stderr) if best else line, file=sys.stderr)
        text = "\n".join(
            f"  source      {source}\n  reference   {reference}\n  translation {translation}\n"
            for source, reference, translation in samples
        )
        if text:
            shown = _escaped(text.rstrip())
            self._append(shown)
            tqdm.write(fitted(shown, sys.stderr), file=sys.stderr)
            write_text(self.run.samples / f"step-{step:06d}.txt", text)
        self._display.end_validation(validation.scores[0] if best and validation.scores else None)

    def log_end(self, progress: TrainingProgress, device: torch.device) -> None:
        if self.run is None:
            return
        speed = progress.num_tokens / progress.seconds
        if progress.step < self.max_steps:
            self.log(
                f"no better validation in the last {progress.num_bad_validations}: stopping early"
            )
        self.log(
            f"{self.run.path}: finished; the best checkpoint is step {progress.best_step}\n"
            f"{quantity(progress.step, 'step')} in {progress.seconds / 60:.1f} minutes, "
            f"{speed:,.0f} target tokens/s, peak memory {peak_memory(device) / 2**20:,.0f} MiB"
        )

    def _record(self, numbers: dict[str, object]) -> None:
        if self.run is None:
            return
        file = self.run.metrics_file
        with storage_errors(file), file.open("a", encoding="utf-8") as metrics:
            metrics.write(json.dumps(numbers) + "\n")
        for sink in self._sinks:
            sink.add(numbers)


def _escaped(text: str) -> str:
    """Return lines whose control characters are escaped."""
    return "\n".join(map(printable, text.split("\n")))


def _lines_until(lines: list[str], progress: TrainingProgress) -> Iterator[str]:
    """Yield the lines of metrics.jsonl up to `progress`, without one that a kill cut short.

    A rollback or a validation at its very step is dropped if `progress` was saved before it: it
    comes again.
    """
    for line in lines:
        try:
            report = parse_json(line)
        except ValueError:
            continue
        match report:
            case {"kind": "rollback", "step": int(step), "num_rollbacks": int(num_rollbacks)}:
                is_known = num_rollbacks <= progress.num_rollbacks
            case {"kind": "valid", "step": int(step)}:
                is_known = step < progress.step or progress.score is not None
            case {"kind": str(kind), "step": int(step)} if kind != "rollback":
                is_known = True
            case _:
                continue
        if step <= progress.step and is_known:
            yield f"{line}\n"
