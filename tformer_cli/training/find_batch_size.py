"""The largest batch that fits into memory, found by trying."""

import contextlib
import multiprocessing
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import empty_cache, is_out_of_memory, peak_memory
from tformer_cli.errors import DeviceError, TrainingError, UsageError
from tformer_cli.process import begin_child, tune_allocator
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.free_memory import free_memory
from tformer_cli.training.preparation import Preparation
from tformer_cli.training.rehearsal import (
    OutOfMemory,
    Rehearsal,
    prepared_again,
    rehearsal,
    take_worst_case_steps,
)

# The first step makes the optimiser's moments; the second needs them and all the rest at once.
TRIAL_STEPS = 2
# The search ends when what it does not know is no more than this part of what it has found.
TOLERANCE = 1 / 32
# Of the RAM that is free: other programs need some of it, too.
SHARE_OF_RAM = 0.8

Trial = Callable[[int], int | None]
"""Takes steps with a budget of tokens; returns the peak memory in bytes, None if that ran out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LargestBatch:
    """The largest batch that fits into memory.

    Attributes:
        batch_tokens: its budget of tokens.
        peak_memory_bytes: that steps at the worst such batch took.
        memory_limit_bytes: that they were allowed.
        is_whole_text: whether it is that large only because there is no more text.
    """

    batch_tokens: int
    peak_memory_bytes: int
    memory_limit_bytes: int
    is_whole_text: bool

    @property
    def setting(self) -> str:
        """The key and the value by which a training takes it."""
        return f"training.batch_tokens={self.batch_tokens}"

    def __str__(self) -> str:
        peak, limit = (
            f"{size / 2**30:,.2f} GiB" for size in (self.peak_memory_bytes, self.memory_limit_bytes)
        )
        whole = ", and holds the whole text" if self.is_whole_text else ""
        return f"largest batch: {self.batch_tokens:,} tokens; it takes {peak} of {limit}{whole}"

    def as_json(self) -> dict[str, object]:
        """Return all of it as plain data."""
        return {**asdict(self), "set": self.setting}


def find_batch(
    config: Config, run: RunDirectory, *, device: torch.device, memory_limit: float | None
) -> LargestBatch:
    """Try larger and larger batches, and leave nothing behind.

    Args:
        config: of the training; it says what a batch is made of.
        run: where the training would take place.
        device: where it would train.
        memory_limit: in GiB; None is all that the device has, or of RAM a share of what is free.

    Raises:
        TformerError: the training could not begin, or not even the smallest batch fits.
    """
    limit = _limit_bytes(device, memory_limit)
    with rehearsal(config, run, device=device) as rehearsed, _trials(rehearsed, limit) as trial:
        peaks: dict[int, int] = {}

        def fits(batch_tokens: int) -> bool:
            peak = trial(batch_tokens)
            if peak is None or peak > limit:
                rehearsed.log(f"{batch_tokens:,} tokens do not fit")
                return False
            rehearsed.log(f"{batch_tokens:,} tokens take {peak / 2**30:,.2f} GiB")
            peaks[batch_tokens] = peak
            return True

        # What the config refuses is not tried.
        smallest = config.data.filters.max_length + 1
        most = max(smallest, round(_num_tokens(rehearsed.prepared.store) / rehearsed.share))
        found = largest(fits, smallest, most)
        if found is None:
            raise TrainingError(
                "training.batch_tokens",
                f"not even the smallest batch fits into {limit / 2**30:,.2f} GiB",
                got=f"{smallest} tokens",
                remedy="lower data.filters.max_length, train a smaller model, or set "
                "training.gradient_checkpointing: true",
            )
        return LargestBatch(
            batch_tokens=found,
            peak_memory_bytes=peaks[found],
            memory_limit_bytes=limit,
            is_whole_text=found == most,
        )


def largest(fits: Callable[[int], bool], smallest: int, most: int) -> int | None:
    """Return the largest number that fits, or one that is less by TOLERANCE of it at most.

    Args:
        fits: asked about few numbers, since asking takes time; what is smaller than a number that
            fits must fit too.
        smallest: the first to ask about; if it does not fit the answer is None.
        most: the last.
    """
    if not fits(smallest):
        return None
    low, high = smallest, min(2 * smallest, most)
    while low < high and fits(high):
        low, high = high, min(2 * high, most)
    while high - low > max(1, low * TOLERANCE):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def trial(prepared: Preparation, batch_tokens: int) -> int | None:
    """Take steps at the worst batches, and return the peak memory in bytes, None if it ran out."""
    device = prepared.train_state.device
    empty_cache(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        take_worst_case_steps(prepared, batch_tokens, TRIAL_STEPS)
    except OutOfMemory:
        return None
    return peak_memory(device)


@contextlib.contextmanager
def _trials(rehearsed: Rehearsal, limit: int) -> Iterator[Trial]:
    """Yield what tries batches within a limit in bytes."""
    prepared = rehearsed.prepared
    # That of a weight has a number, even where `cuda` alone was asked for.
    device = next(prepared.model.parameters()).device
    if device.type == "cpu":
        yield lambda batch_tokens: _trial_apart(rehearsed.run, batch_tokens, limit)
        return
    torch.cuda.set_per_process_memory_fraction(limit / _cuda_memory(device), device)
    try:
        yield lambda batch_tokens: trial(prepared, batch_tokens)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _trial_apart(run: RunDirectory, batch_tokens: int, limit: int) -> int | None:
    """Try a batch in a process of its own, for the peak of one that goes on never falls."""
    context = multiprocessing.get_context("spawn")
    arguments = run.path, batch_tokens, limit, torch.get_num_threads()
    with ProcessPoolExecutor(1, context, initializer=begin_child) as pool:
        try:
            return pool.submit(_trial_of_run, *arguments).result()
        except BrokenProcessPool:
            # Code that cannot report a lack of memory ends the process.
            return None
        except BaseException:
            # The pool would wait for a trial that nobody asks about any more.
            for child in multiprocessing.active_children():
                child.kill()
            raise


def _trial_of_run(folder: Path, batch_tokens: int, limit: int, num_threads: int) -> int | None:
    # This process is to run out of memory before the machine does.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    torch.set_num_threads(num_threads)
    tune_allocator()
    try:
        prepared = prepared_again(RunDirectory(folder), torch.device("cpu"))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    return trial(prepared, batch_tokens)


def _limit_bytes(device: torch.device, memory_limit: float | None) -> int:
    """Return what may be taken of the memory of a device.

    Raises:
        DeviceError: its memory cannot be measured.
        UsageError: the limit is missing, or above what there is.
    """
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(
            "`device`",
            "cannot measure the memory of this device",
            got=str(device),
            remedy="use cpu or cuda",
        )
    there = free_memory() if device.type == "cpu" else _cuda_memory(device)
    if memory_limit is not None:
        limit = round(memory_limit * 2**30)
        if device.type == "cuda" and there is not None and limit > there:
            raise UsageError(
                "`memory_limit`",
                f"must be at most what the device has ({there / 2**30:,.2f} GiB)",
                got=f"{memory_limit:g}",
            )
        return limit
    if there is None:
        raise UsageError(
            "`memory_limit`",
            "is needed here, for this system does not say how much memory is free",
            remedy="add `memory_limit=8`, for instance",
        )
    return there if device.type == "cuda" else int(SHARE_OF_RAM * there)


def _cuda_memory(device: torch.device) -> int:
    total: int = torch.cuda.get_device_properties(device).total_memory
    return total


def _num_tokens(store: TokenStore) -> int:
    """Return how many tokens a batch of all pairs has, on its longer side and without padding."""
    longer = np.maximum(store.source_lengths, store.target_lengths)
    return int(longer.sum(dtype=np.int64)) + len(store)
