"""The numbers of a run for TensorBoard."""

import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tformer_cli.errors import UsageError
from tformer_cli.json_text import parse_json
from tformer_cli.storage.atomic import storage_errors
from tformer_cli.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Shows the curves of metrics.jsonl as they grow: `tensorboard --logdir runs`.

    Its files are made anew from metrics.jsonl whenever a training goes on, so they never show steps
    that were taken back.
    """

    def __init__(self, run: RunDirectory) -> None:
        """Show what a run has reported so far.

        Raises:
            UsageError: TensorBoard is not installed.
            StorageError: the folder cannot be written.
        """
        self._folder = run.tensorboard
        with storage_errors(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._writer = summary_writer()(str(self._folder))
        if run.metrics_file.exists():
            for line in run.metrics_file.read_text(encoding="utf-8").splitlines():
                self.show(parse_json(line))

    def show(self, numbers: Mapping[str, Any]) -> None:
        """Add a point to every curve that a line of metrics.jsonl has a number for."""
        if numbers["kind"] not in ("train", "valid"):
            return
        with storage_errors(self._folder):
            for name, value in _curves(numbers):
                self._writer.add_scalar(name, value, numbers["step"])
            self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


def summary_writer() -> type["SummaryWriter"]:
    """Return torch's class that writes files for TensorBoard.

    Raises:
        UsageError: TensorBoard is not installed.
    """
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
    """Yield each number with the name of its curve."""
    kind = numbers["kind"]
    for name, value in numbers.items():
        if isinstance(value, float):
            yield f"{kind}/{name}", value
    for part, report in numbers.get("parts", {}).items():
        for name, value in report.items():
            if value is not None:
                yield f"{name}/{part}", value
