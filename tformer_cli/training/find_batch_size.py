"""The largest batch size that fits into memory, found by trial."""

import contextlib
import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.device import empty_cache, peak_memory, suppress_out_of_memory
from tformer_cli.errors import DeviceError, OutOfMemory, TrainingError, UsageError
from tformer_cli.process import CGROUP, begin_child, tune_allocator
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import load_tokenizers
from tformer_cli.training.dry_run import sampled_trainer, worst_case_steps
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.trainer import Trainer

# The second step needs the optimizer's moments and all the rest at once.
TRIAL_STEPS = 2
# The search ends when the range left is at most this share of the batch size found.
TOLERANCE = 1 / 32
# Of the free RAM; other programs need some of it.
SHARE_OF_RAM = 0.8
# What Linux tells about the machine: proc_meminfo(5).
PROC = Path("/proc")

TryBatch = Callable[[int], int | None]
"""Takes steps with a token budget; returns the peak memory in bytes, None if that ran out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LargestBatch:
    """The largest token budget that fits into memory, or that a whole epoch fills."""

    batch_tokens: int
    peak_memory_bytes: int
    memory_limit_bytes: int
    is_whole_text: bool

    @property
    def setting(self) -> str:
        """The key and value of a config, as `KEY=VALUE`."""
        return f"training.batch_tokens={self.batch_tokens}"

    def __str__(self) -> str:
        peak, limit = (
            f"{size / 2**30:,.2f} GiB" for size in (self.peak_memory_bytes, self.memory_limit_bytes)
        )
        whole = ", and holds the whole text" if self.is_whole_text else ""
        return f"largest batch: {self.batch_tokens:,} tokens; it takes {peak} of {limit}{whole}"

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "set": self.setting}


def find_batch_size(
    config: Config, run: RunDirectory, *, device: torch.device, memory_limit: float | None
) -> LargestBatch:
    """Try larger and larger batches, and leave nothing behind.

    `memory_limit` is in GiB; None is all of a GPU, or a share of the free RAM.
    """
    limit = _limit_bytes(device, memory_limit)
    with (
        sampled_trainer(config, run, device=device) as (trainer, num_pairs),
        _trials(trainer, limit) as try_batch,
    ):
        log, data = trainer.logger.log, trainer.data
        peaks: dict[int, int] = {}

        def fits(batch_tokens: int) -> bool:
            peak = try_batch(batch_tokens)
            if peak is None or peak > limit:
                log(f"{batch_tokens:,} tokens do not fit")
                return False
            log(f"{batch_tokens:,} tokens take {peak / 2**30:,.2f} GiB")
            peaks[batch_tokens] = peak
            return True

        # A config refuses smaller batches.
        smallest = config.data.max_length + 1
        # Of a batch of a whole epoch, on the longer side and without padding. The first phase has
        # the largest epochs.
        store = data.phase_after(0).store
        longer = np.maximum(store.source_lengths, store.target_lengths)
        num_tokens = float((longer + 1) @ store.weights[:])
        max_tokens = max(smallest, round(num_tokens / (data.report.seen / num_pairs)))
        batch_tokens = largest(fits, smallest, max_tokens)
        if batch_tokens is None:
            raise TrainingError(
                "training.batch_tokens",
                f"not even the smallest batch fits into {limit / 2**30:,.2f} GiB",
                got=f"{smallest} tokens",
                remedy="lower data.filters.max_length, train a smaller model, or set "
                "training.gradient_checkpointing: true",
            )
        return LargestBatch(
            batch_tokens=batch_tokens,
            peak_memory_bytes=peaks[batch_tokens],
            memory_limit_bytes=limit,
            is_whole_text=batch_tokens == max_tokens,
        )


def largest(fits: Callable[[int], bool], smallest: int, most: int) -> int | None:
    """Return the largest number that fits, less TOLERANCE at most; None if `smallest` does not.

    Few numbers are tried, first by doubling and then by bisection, and none above `most`.
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


@contextlib.contextmanager
def _trials(trainer: Trainer, limit: int) -> Iterator[TryBatch]:
    """Yield what tries batches within a limit in bytes."""
    # The device of a weight has an index, even where `cuda` was asked for.
    device = next(trainer.state.model.parameters()).device
    if device.type == "cpu":
        yield lambda batch_tokens: _try_in_child(trainer.run_directory, batch_tokens, limit)
        return
    torch.cuda.set_per_process_memory_fraction(limit / _cuda_memory(device), device)
    try:
        yield lambda batch_tokens: trial(trainer, batch_tokens)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def trial(trainer: Trainer, batch_tokens: int) -> int | None:
    """Take steps at the worst batches; return the peak memory in bytes, None if it ran out."""
    device = trainer.state.device
    empty_cache(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        worst_case_steps(trainer, batch_tokens, TRIAL_STEPS)
    except OutOfMemory:
        return None
    return peak_memory(device)


def _try_in_child(run: RunDirectory, batch_tokens: int, limit: int) -> int | None:
    """Try a batch in a child process, as the peak memory of a process never falls."""
    context = multiprocessing.get_context("spawn")
    arguments = run.path, batch_tokens, limit, torch.get_num_threads()
    with ProcessPoolExecutor(1, context, initializer=begin_child) as pool:
        try:
            return pool.submit(_trial_of_run, *arguments).result()
        except BrokenProcessPool:
            # Code that cannot report a lack of memory ends the process.
            return None
        except BaseException:
            # The pool would wait for a trial whose result nobody needs.
            for child in multiprocessing.active_children():
                child.kill()
            raise


def _trial_of_run(folder: Path, batch_tokens: int, limit: int, num_threads: int) -> int | None:
    import resource  # of Unix

    # This process runs out of memory before the machine does.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    torch.set_num_threads(num_threads)
    tune_allocator()
    run = RunDirectory(folder)
    with suppress_out_of_memory():
        config = load_config(run.config_file)
        tokenizers = load_tokenizers(run.tokenizer)
        logger = TrainingLogger(None, config.training)
        trainer = Trainer.setup(config, run, tokenizers, device=torch.device("cpu"), logger=logger)
        return trial(trainer, batch_tokens)
    return None


def _limit_bytes(device: torch.device, memory_limit: float | None) -> int:
    """Return how much of the memory of a device may be used."""
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(
            "`device`",
            "cannot measure the memory of this device",
            got=str(device),
            remedy="use cpu or cuda",
        )
    available = free_memory() if device.type == "cpu" else _cuda_memory(device)
    if memory_limit is not None:
        limit = round(memory_limit * 2**30)
        if device.type == "cuda" and available is not None and limit > available:
            raise UsageError(
                "`memory_limit`",
                f"must be at most the {available / 2**30:,.2f} GiB of the device",
                got=f"{memory_limit:g}",
            )
        return limit
    if available is None:
        raise UsageError(
            "`memory_limit`",
            "is needed here, as this system does not say how much memory is free",
            remedy="add `memory_limit=8`, for instance",
        )
    return available if device.type == "cuda" else int(SHARE_OF_RAM * available)


def _cuda_memory(device: torch.device) -> int:
    total: int = torch.cuda.get_device_properties(device).total_memory
    return total


def free_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Return the free RAM in bytes, of the container if its limit is lower; None if unknown."""
    try:
        meminfo = (proc / "meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    line = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if line is None:
        return None
    available = int(line[1]) * 2**10
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        statistics = (cgroup / "memory.stat").read_text(encoding="ascii")
    except OSError:
        return available
    if limit == "max":
        return available
    # Cached files count as used, though the kernel drops them when memory is wanted.
    cached = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
    used -= int(cached[1]) if cached else 0
    return min(available, max(0, int(limit) - used))
