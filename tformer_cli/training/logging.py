"""What a training reports: a progress bar or lines, train.log, metrics.jsonl, and TensorBoard."""

import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from tqdm import tqdm

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.device import peak_memory
from tformer_cli.errors import UsageError, printable
from tformer_cli.evaluation.evaluate import perplexity
from tformer_cli.storage.atomic import parse_json, storage_errors, write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.step import NonFiniteStep, StepReport
from tformer_cli.training.validation import Validation

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TrainingLogger:
    """Reports a training.

    A terminal gets a progress bar; anything else gets a line every `report_every` steps. The same
    lines go into train.log, and their numbers into metrics.jsonl, one JSON object per line.
    """

    def __init__(self, run: RunDirectory, training: TrainingConfig) -> None:
        self.run = run
        self.max_steps = training.max_steps
        self.report_every = training.report_every
        self.has_tensorboard = training.tensorboard
        self._reports: list[StepReport] = []
        self._has_run_out_of_memory = False
        self._bar: tqdm[Any] | None = None
        self._tensorboard: TensorBoard | None = None

    def __enter__(self) -> Self:
        if self.has_tensorboard:
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
        if self._tensorboard is not None:
            self._tensorboard.close()

    def log(self, line: str) -> None:
        """Print a line, and append it to train.log; control characters are escaped."""
        line = "\n".join(map(printable, line.split("\n")))
        tqdm.write(line, file=sys.stderr)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        file = self.run.log_file
        with storage_errors(file), file.open("a", encoding="utf-8") as log:
            log.write(f"{stamp} {line}\n")

    def truncate(self, progress: TrainingProgress) -> None:
        """Remove reports and samples after `progress`: those steps are taken again."""
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
        if self._bar is not None:
            self._bar.n = progress.step
            self._bar.refresh()
        if self._tensorboard is not None:
            self._tensorboard.close()
            self._tensorboard = TensorBoard.rewrite(self.run)

    def start(self, step: int) -> None:
        """Start the progress bar after `step`, and TensorBoard's curves."""
        if self.has_tensorboard:
            self._tensorboard = TensorBoard.rewrite(self.run)
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=self.max_steps, initial=step, unit="step", dynamic_ncols=True, smoothing=0.1
            )

    def log_step(self, report: StepReport) -> None:
        self._reports.append(report)
        if self._bar is not None:
            self._bar.update()
        if report.num_oom_micro_batches > 0:
            self._log_out_of_memory(report)
        if report.step % self.report_every == 0:
            self.flush()

    def _log_out_of_memory(self, report: StepReport) -> None:
        self._record(
            {"kind": "memory", "step": report.step, "num_pieces": report.num_oom_micro_batches}
        )
        if not self._has_run_out_of_memory:
            self._has_run_out_of_memory = True
            self.log(
                f"step {report.step}: memory ran out; "
                f"redone in {report.num_oom_micro_batches} pieces, "
                "as is every step that needs it; a larger "
                "training.gradient_accumulation_steps saves the time"
            )

    def log_skipped(self, step: NonFiniteStep) -> None:
        self._record(
            {
                "kind": "skip",
                "step": step.step,
                "epoch": step.batch.position.epoch,
                "batch": step.batch.position.batch,
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

    def flush(self) -> None:
        """Report the steps since the last report, if there are any."""
        if not self._reports:
            return
        reports, self._reports = self._reports, []
        last = reports[-1]
        num_tokens = sum(report.num_tokens for report in reports)
        seconds = sum(report.seconds for report in reports)
        speed = num_tokens / seconds
        loss, nll, accuracy = (
            sum(getattr(report, name) * report.num_tokens for report in reports) / num_tokens
            for name in ("loss", "nll", "accuracy")
        )
        numbers: dict[str, Any] = {
            "kind": "train",
            "step": last.step,
            "epoch": last.position.epoch,
            "loss": loss,
            "perplexity": perplexity(nll),
            "accuracy": accuracy,
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
            f"loss {loss:.3f}  ppl {perplexity(nll):.2f}  acc {accuracy:.1%}  "
            f"lr {last.learning_rate:.2e}  {speed:,.0f} tok/s"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(summary)
        else:
            left = (self.max_steps - last.step) * seconds / len(reports)
            self.log(f"step {last.step}/{self.max_steps}  {summary}  ETA {_duration(left)}")

    def log_validation(
        self, step: int, validation: Validation, samples: Iterable[tuple[str, str, str]], best: bool
    ) -> None:
        """Report a validation, and write samples (source, reference, translation) into samples/."""
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

    def log_end(self, progress: TrainingProgress, device: torch.device) -> None:
        speed = progress.num_tokens / progress.seconds
        if progress.step < self.max_steps:
            self.log(
                f"no better validation in the last {progress.num_bad_validations}: stopping early"
            )
        self.log(
            f"{self.run.path}: finished; the best checkpoint is step {progress.best_step}\n"
            f"{progress.step:,} steps in {progress.seconds / 60:.1f} minutes, "
            f"{speed:,.0f} target tokens/s, peak memory {peak_memory(device) / 2**20:,.0f} MiB"
        )

    def _record(self, numbers: dict[str, object]) -> None:
        file = self.run.metrics_file
        with storage_errors(file), file.open("a", encoding="utf-8") as metrics:
            metrics.write(json.dumps(numbers) + "\n")
        if self._tensorboard is not None:
            self._tensorboard.show(numbers)


class NullLogger(TrainingLogger):
    """Reports nothing: of several processes the first alone reports."""

    def __enter__(self) -> Self:
        return self

    def log(self, line: str) -> None:
        pass

    def truncate(self, progress: TrainingProgress) -> None:
        pass

    def start(self, step: int) -> None:
        pass

    def log_validation(
        self, step: int, validation: Validation, samples: Iterable[tuple[str, str, str]], best: bool
    ) -> None:
        pass

    def _record(self, numbers: dict[str, object]) -> None:
        pass


def _lines_until(lines: list[str], progress: TrainingProgress) -> Iterable[str]:
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


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class TensorBoard:
    """The curves of metrics.jsonl for TensorBoard, as they grow: `tensorboard --logdir runs`."""

    def __init__(self, folder: Path, writer: "SummaryWriter") -> None:
        self._folder = folder
        self._writer = writer

    @classmethod
    def rewrite(cls, run: RunDirectory) -> Self:
        """Write the curves of metrics.jsonl anew, without steps that were taken back."""
        with storage_errors(run.tensorboard):
            shutil.rmtree(run.tensorboard, ignore_errors=True)
            board = cls(run.tensorboard, summary_writer()(str(run.tensorboard)))
        if run.metrics_file.exists():
            for line in run.metrics_file.read_text(encoding="utf-8").splitlines():
                board.show(parse_json(line))
        return board

    def show(self, numbers: Mapping[str, Any]) -> None:
        """Add a point to every curve that a line of metrics.jsonl has a number for."""
        if numbers["kind"] not in ("train", "valid"):
            return
        with storage_errors(self._folder):
            for name, value in _curves(numbers):
                self._writer.add_scalar(name, value, numbers["step"])
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def summary_writer() -> type["SummaryWriter"]:
    """Return torch's class that writes files for TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "training.tensorboard",
            "needs TensorBoard, which is not installed",
            remedy="pip install 'tformer[tensorboard]', or set it to false",
        ) from None
    return SummaryWriter


def _curves(numbers: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the name of each curve, and its number."""
    kind = numbers["kind"]
    for name, value in numbers.items():
        if isinstance(value, float):
            yield f"{kind}/{name}", value
    for part, report in numbers.get("parts", {}).items():
        for name, value in report.items():
            if value is not None:
                yield f"{name}/{part}", value
