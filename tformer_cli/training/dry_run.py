"""What a training will take, found out before it begins."""

import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import peak_memory
from tformer_cli.errors import TrainingError
from tformer_cli.storage.atomic import storage_errors
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.preparation import Preparation
from tformer_cli.training.rehearsal import (
    OutOfMemory,
    Rehearsal,
    rehearsal,
    take_steps,
    take_worst_case_steps,
)
from tformer_cli.training.worst_batch import Shape

WORST_STEPS = 3
TYPICAL_STEPS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """What a training will take.

    Attributes:
        device: where it would train.
        precision: number format of its matrix products.
        num_parameters: weights of the model.
        vocabulary_sizes: of the source and the target.
        unit: pairs, or lines of a text alone.
        num_pairs: how many of them the training text has.
        sample: what became of those that were looked at.
        worst_batch: pairs, and tokens of each side of a pair, of the batch that took longest of
            those that may cost most memory.
        worst_seconds: of a step at it.
        peak_memory_bytes: most memory taken until the last step; of a CUDA device, else of RAM.
        tokens_per_second: target tokens, in batches of the training text.
        seconds_per_step: likewise.
        num_steps: of the training.
        num_epochs: in these steps.
        seconds: of all steps, without validations.
        num_checkpoints: that are there at a time, at most.
        checkpoint_bytes: of one.
        store_bytes: of the encoded text.
        disk_bytes: of it all, at most.
        free_disk_bytes: where the run folder would be.
    """

    device: str
    precision: str
    num_parameters: int
    vocabulary_sizes: tuple[int, int]
    unit: str
    num_pairs: int
    sample: FilterReport
    worst_batch: Shape
    worst_seconds: float
    peak_memory_bytes: int
    tokens_per_second: float
    seconds_per_step: float
    num_steps: int
    num_epochs: float
    seconds: float
    num_checkpoints: int
    checkpoint_bytes: int
    store_bytes: int
    disk_bytes: int
    free_disk_bytes: int

    def __str__(self) -> str:
        sizes = " and ".join(f"{size:,}" for size in sorted({*self.vocabulary_sizes}))
        text = self.sample.describe(self.unit)
        if self.sample.seen < self.num_pairs:
            text = f"{self.num_pairs:,} {self.unit}s; in a sample of {text}"
        rows, width = self.worst_batch
        free = f"{_size(self.free_disk_bytes)} are free"
        if self.free_disk_bytes < self.disk_bytes:
            free += ", which is not enough"
        return "\n".join(
            (
                f"model: {self.num_parameters:,} parameters, vocabulary {sizes}, "
                f"on {self.device} in {self.precision}",
                f"training text: {text}",
                f"largest batch: {rows:,} x {width:,} tokens a side, "
                f"{self.worst_seconds:.2f} seconds a step",
                f"peak memory: {_size(self.peak_memory_bytes)}, validations not counted",
                f"speed: {self.tokens_per_second:,.0f} target tokens/s, "
                f"{self.seconds_per_step:.2f} seconds a step",
                f"time: {timedelta(seconds=round(self.seconds))} for {self.num_steps:,} steps "
                f"({self.num_epochs:.1f} epochs), validations not counted",
                f"disk: {_size(self.disk_bytes)} at most: {self.num_checkpoints} checkpoints "
                f"of {_size(self.checkpoint_bytes)}, encoded text of "
                f"{_size(self.store_bytes)}; {free}",
            )
        )

    def as_json(self) -> dict[str, object]:
        """Return all of it as plain data."""
        return asdict(self) | {"worst_batch": self.worst_batch._asdict()}


def dry_run(config: Config, run: RunDirectory, *, device: torch.device) -> DryRun:
    """Read all files of a training, take some steps, and leave nothing behind.

    Args:
        config: of the training.
        run: where it would take place.
        device: likewise.

    Raises:
        TformerError: what would keep the training from beginning, or from a step.
    """
    _check_writable(run)
    with rehearsal(config, run, device=device) as rehearsed:
        rehearsed.log("taking steps at the largest batches")
        try:
            return _measured(rehearsed, run)
        except OutOfMemory:
            raise TrainingError(
                "training.batch_tokens",
                "the largest batch does not fit into memory",
                got=str(config.training.batch_tokens),
                remedy="lower it (`tformer train --find-batch` says how far), or set "
                "training.gradient_checkpointing: true",
            ) from None


def _measured(rehearsed: Rehearsal, run: RunDirectory) -> DryRun:
    prepared, share = rehearsed.prepared, rehearsed.share
    training = prepared.config.training
    worst = take_worst_case_steps(prepared, training.batch_tokens, WORST_STEPS)
    worst_batch, slowest = max(worst.items(), key=lambda taken: taken[1].seconds)
    started = time.perf_counter()
    typical = list(take_steps(prepared, TYPICAL_STEPS))
    elapsed = time.perf_counter() - started
    steps_per_epoch = len(prepared.plans[0])
    # Of a text whose weight is below one, an epoch may see nothing.
    epochs_per_step = share / max(1, steps_per_epoch)
    seconds_per_step = elapsed / len(typical)
    num_checkpoints, checkpoint_bytes = most_checkpoints(training), checkpoint_size(prepared)
    store_bytes = round(_store_size(prepared.store) / share)
    return DryRun(
        device=str(prepared.train_state.device),
        precision=str(prepared.train_state.precision).removeprefix("torch."),
        num_parameters=prepared.model.num_parameters(),
        vocabulary_sizes=(prepared.tokenizers.source.size, prepared.tokenizers.target.size),
        unit=prepared.config.data.unit,
        num_pairs=rehearsed.num_pairs,
        sample=prepared.report,
        worst_batch=worst_batch,
        worst_seconds=slowest.seconds,
        peak_memory_bytes=peak_memory(prepared.train_state.device),
        tokens_per_second=sum(report.num_tokens for report in typical) / elapsed,
        seconds_per_step=seconds_per_step,
        num_steps=training.max_steps,
        num_epochs=training.max_steps * epochs_per_step,
        seconds=training.max_steps * seconds_per_step,
        num_checkpoints=num_checkpoints,
        checkpoint_bytes=checkpoint_bytes,
        store_bytes=store_bytes,
        # A store is copied when it is finished, without the pairs that turned out to be repeated.
        disk_bytes=num_checkpoints * checkpoint_bytes + 2 * store_bytes,
        free_disk_bytes=_free_disk(run),
    )


def most_checkpoints(training: TrainingConfig) -> int:
    """Return how many checkpoints of a training are there at a time, at most.

    The oldest one goes when the newest is there; what an interruption saved comes on top.
    """
    steps = range(1, training.max_steps + 1)
    every = training.save_every, training.validate_every
    saved = {training.max_steps, *(step for count in every for step in steps[count - 1 :: count])}
    return min(len(saved) + 1, training.keep_checkpoints + training.keep_best + 2)


def checkpoint_size(prepared: Preparation) -> int:
    """Return the bytes of the tensors in a checkpoint, after a step at least."""
    weights = _bytes(prepared.model.parameters())
    moments = _bytes(
        value for state in prepared.train_state.optimizer.state.values() for value in state.values()
    )
    return weights * (1 if prepared.average is None else 2) + moments


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _store_size(store: TokenStore) -> int:
    parts = store.source_ids, store.source_offsets, store.target_ids, store.target_offsets
    # The arrays of a text alone serve as both sides.
    return sum({id(part): part.nbytes for part in parts}.values())


def _check_writable(run: RunDirectory) -> None:
    """Make sure that the run folder can be written or made, and leave nothing there.

    Raises:
        StorageError: it cannot.
    """
    with storage_errors(run.path), tempfile.TemporaryFile(dir=_nearest(run)):
        pass


def _free_disk(run: RunDirectory) -> int:
    return shutil.disk_usage(_nearest(run)).free


def _nearest(run: RunDirectory) -> Path:
    """Return the run folder, or what there is of the way to it."""
    path = run.path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def _size(num_bytes: int) -> str:
    if num_bytes < 2**30:
        return f"{num_bytes / 2**20:,.1f} MiB"
    return f"{num_bytes / 2**30:,.1f} GiB"
