"""Sinks of metrics.jsonl: TensorBoard, and Weights & Biases."""

import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import yaml

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.errors import UsageError
from tformer_cli.extras import package
from tformer_cli.storage.atomic import parse_json, storage_errors
from tformer_cli.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Sink(Protocol):
    """Shows the numbers of a run.

    It begins with those that metrics.jsonl has, and gets further ones. After steps were taken back
    a new one replaces it.
    """

    def __init__(self, run: RunDirectory) -> None: ...

    def add(self, numbers: Mapping[str, Any]) -> None:
        """Show a line of metrics.jsonl."""

    def close(self) -> None:
        """Finish."""


def sinks_of(training: TrainingConfig) -> list[type[Sink]]:
    """Return the sinks of a config.

    Raises:
        UsageError: a package that one needs is not installed.
    """
    sinks: list[type[Sink]] = []
    if training.tensorboard:
        summary_writer()
        sinks.append(TensorBoard)
    if training.wandb:
        package("wandb", "wandb")
        sinks.append(WeightsAndBiases)
    return sinks


def logged(run: RunDirectory) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl, if it is there."""
    if run.metrics_file.exists():
        yield from map(parse_json, run.metrics_file.read_text(encoding="utf-8").splitlines())


def points(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return a point of every curve that a line of metrics.jsonl has a number for."""
    kind = numbers["kind"]
    if kind not in ("train", "valid"):
        return {}
    values = {f"{kind}/{name}": value for name, value in numbers.items()}
    for part, report in (numbers.get("parts", {}) | numbers.get("directions", {})).items():
        values |= {f"{name}/{part}": value for name, value in report.items()}
    return {name: value for name, value in values.items() if isinstance(value, float)}


class TensorBoard:
    """Writes curves for `tensorboard --logdir runs`."""

    def __init__(self, run: RunDirectory) -> None:
        self._folder = run.tensorboard
        with storage_errors(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._writer = summary_writer()(str(self._folder))
        for numbers in logged(run):
            self.add(numbers)

    def add(self, numbers: Mapping[str, Any]) -> None:
        """Add a point to every curve that a line of metrics.jsonl continues."""
        with storage_errors(self._folder):
            for name, value in points(numbers).items():
                self._writer.add_scalar(name, value, numbers["step"])
            self._writer.flush()

    def close(self) -> None:
        """Close its file."""
        self._writer.close()


class WeightsAndBiases:
    """Sends curves and the config to the server that `wandb login` has chosen, or keeps them.

    They stay on the disk if WANDB_MODE is `offline`. Points of a run are there for good, so each
    start of a training is a run of its own, in a group that has the name of the run folder.
    """

    def __init__(self, run: RunDirectory) -> None:
        wandb = package("wandb", "wandb")
        try:
            self._run = wandb.init(
                project="tformer",
                name=run.path.name,
                group=run.path.name,
                dir=str(run.path),
                config=yaml.safe_load(run.config_file.read_text(encoding="utf-8")),
                # It would send whatever is printed.
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            remedy = "call `wandb login`, or set the variable WANDB_MODE to offline"
            what = "cannot be used by Weights & Biases"
            raise UsageError("training.wandb", what, got=str(error), remedy=remedy) from error
        for numbers in logged(run):
            self.add(numbers)

    def add(self, numbers: Mapping[str, Any]) -> None:
        """Add a point to every curve that a line of metrics.jsonl continues."""
        self._run.log(points(numbers), step=numbers["step"])

    def close(self) -> None:
        """Wait until all points are sent or written."""
        self._run.finish()


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
