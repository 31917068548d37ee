"""GPU training speed of large models on synthetic tokens, and why the GPU is idle meanwhile.

All train Marian's network on the same batches: post-norm, sinusoidal positions, tied embeddings,
dropout on embeddings and on the output of each block.
"""

import contextlib
import json
import math
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flops import Ceiling, synchronize, training_flops
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile
from train_baselines import Marian, Ours, Task

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.training import AdamWConfig, TrainingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.prefetch import prefetch
from tformer_cli.corpus.store import PairWeights, TokenStore
from tformer_cli.device import can_compile, peak_memory, resolve_device, resolve_precision
from tformer_cli.training.setup import PREFETCHED_BATCHES

# Of Vaswani et al. 2017, table 3; and one whose kernels take less time than their launches.
BIG = EncoderDecoderConfig(
    dim=1024,
    num_encoder_layers=6,
    num_decoder_layers=6,
    num_heads=16,
    feedforward_dim=4096,
    norm_position="post",
    attention_dropout=0.0,
    feedforward_dropout=0.0,
)
BASE = replace(BIG, dim=512, num_heads=8, feedforward_dim=2048)
TINY = replace(
    BASE, dim=128, num_heads=4, feedforward_dim=256, num_encoder_layers=2, num_decoder_layers=2
)
NETWORKS = {"big": BIG, "base": BASE, "tiny": TINY}
SEED = 1
# Sentence lengths are log-normal and those of a pair alike.
MEAN_LENGTH, LENGTH_SPREAD, RATIO_SPREAD, MAX_LENGTH = 25, 0.6, 0.2, 255
NUM_SPECIAL_IDS = 16
# Small, because the tokens have nothing to teach but their frequencies.
LEARNING_RATE = 1e-4
# Categories of a trace.
DEVICE_WORK = {"cuda": {"kernel", "gpu_memcpy", "gpu_memset"}, "cpu": {"cpu_op"}}
NUM_TOP, NAME_LENGTH = 15, 100

Interval = tuple[float, float]


class SyntheticTask(Task):
    """The training of a network on tokens that stand for no text."""

    def num_positions(self) -> int:
        """Return the positions that Marian needs."""
        return MAX_LENGTH + 1


class Compiled(Ours):
    """Ours as a training has it: on a GPU layers are compiled, and so is the loss."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        if can_compile(task.device):
            self.train_state.model.compile_layers()


class Eager(Ours):
    """Ours, with nothing compiled."""

    def losses(self, batches: Iterable[Batch]) -> Iterator[float]:
        losses = super().losses(batches)
        while True:
            with torch.compiler.set_stance("force_eager"):
                loss = next(losses, None)
            if loss is None:
                return
            yield loss


class CompiledMarian(Marian):
    """Marian, compiled for batches of any shape."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.train_state.model.compile(dynamic=True)


BASELINES = {
    "ours": Compiled,
    "eager": Eager,
    "marian": Marian,
    "marian-compiled": CompiledMarian,
}


class Feed:
    """Makes the batch of each step in a thread ahead of it, as a training does.

    Attributes:
        batch: the latest one.
        seconds: time waited for batches.
    """

    def __init__(self, task: Task) -> None:
        made = task.bucketed_batches()
        if task.device.type == "cuda":
            made = (batch.pin_memory() for batch in made)
        self._made = prefetch(made, PREFETCHED_BATCHES)
        self.batch: Batch | None = None
        self.seconds = 0.0

    def close(self) -> None:
        """Stop making batches."""
        self._made.close()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        started = time.perf_counter()
        self.batch = next(self._made)
        self.seconds += time.perf_counter() - started
        return self.batch


def synthetic_store(num_pairs: int, vocab_size: int) -> TokenStore:
    """Return pairs of Zipf-distributed tokens with the lengths of sentences."""
    random = np.random.default_rng(SEED)
    words = np.arange(NUM_SPECIAL_IDS, vocab_size, dtype=np.uint32)
    frequencies = 1 / np.arange(1, len(words) + 1)
    cumulative = np.cumsum(frequencies / frequencies.sum())

    def side(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.concatenate(([0], np.cumsum(np.clip(np.rint(lengths), 1, MAX_LENGTH))))
        drawn = np.searchsorted(cumulative, random.random(int(offsets[-1])))
        return words[np.minimum(drawn, len(words) - 1)], offsets.astype(np.int64)

    location = np.log(MEAN_LENGTH) - LENGTH_SPREAD**2 / 2
    lengths = random.lognormal(location, LENGTH_SPREAD, num_pairs)
    source = side(lengths)
    target = side(lengths * random.lognormal(0, RATIO_SPREAD, num_pairs))
    return TokenStore(*source, *target, PairWeights.of_runs([num_pairs], [1.0]))


def synthetic_config(network: str, batch_tokens: int = 32_768) -> Config:
    """Return the config of a network without text."""
    no_text = {"source": Path("none"), "target": Path("none")}
    return Config(
        seed=SEED,
        data=DataConfig(train=(TrainingText(**no_text),), valid=ParallelText(**no_text)),
        model=NETWORKS[network],
        training=TrainingConfig(
            optimizer=AdamWConfig(learning_rate=LEARNING_RATE), batch_tokens=batch_tokens
        ),
    )


def begin(
    network: str,
    baseline: str,
    *,
    device: str = "cuda",
    precision: str = "bfloat16",
    vocab_size: int = 37_000,
    batch_tokens: int = 32_768,
    num_pairs: int = 100_000,
) -> tuple[Task, Feed, Iterator[float]]:
    """Return a task, its batches, and the losses of its training, which begins with the first.

    `batch_tokens` are padded tokens of a step on either side.
    """
    config = synthetic_config(network, batch_tokens)
    side = SimpleNamespace(size=vocab_size)
    task = SyntheticTask(
        config,
        SimpleNamespace(source=side, target=side),
        synthetic_store(num_pairs, vocab_size),
        resolve_precision(precision, resolve_device(device)),
        resolve_device(device),
    )
    feed = Feed(task)
    return task, feed, BASELINES[baseline](task).losses(feed)


@dataclass(frozen=True, slots=True)
class Step:
    """One measured optimizer step."""

    seconds: float  # making its batch included
    loading_seconds: float  # waiting for its batch
    target_tokens: int  # with a loss: EOS has one, BOS and padding have none
    tokens: int  # of both sides without padding
    positions: int  # the same with padding
    flops: float  # that the model needs
    loss: float  # smoothed cross-entropy per target token before the step, in nats


def measured(losses: Iterator[float], feed: Feed, task: Task) -> Iterator[Step]:
    """Yield measured steps."""
    vocab_size = task.tokenizers.target.size
    while True:
        loaded, started = feed.seconds, time.perf_counter()
        loss = next(losses)
        seconds = time.perf_counter() - started
        batch = feed.batch
        source, target = (
            mask.sum(dim=1).numpy() for mask in (batch.source_mask, batch.target_mask)
        )
        yield Step(
            seconds=seconds,
            loading_seconds=feed.seconds - loaded,
            target_tokens=int(target.sum()),
            tokens=int(source.sum() + target.sum()),
            positions=batch.source_mask.numel() + batch.target_mask.numel(),
            flops=training_flops(task.config.model, vocab_size, source, target, causal_share=0.5),
            loss=loss,
        )


def throughput(
    network: str,
    baseline: str = "ours",
    *,
    warm_up: int = 10,
    seconds: float = 12.0,
    gemm_size: int = 8192,
    **options: Any,
) -> dict[str, object]:
    """Train for some seconds after a warm-up of one step or more: kernels are chosen, or compiled.

    The device's peak is measured by matrices of `gemm_size` rows; `options` are those of `begin`.
    """
    task, feed, losses = begin(network, baseline, **options)
    begun = time.perf_counter()
    steps: list[Step] = []
    with contextlib.closing(feed):
        initial_loss, *_ = islice(losses, warm_up)
        warm, num_graphs = time.perf_counter(), counters["stats"]["unique_graphs"]
        for step in measured(losses, feed, task):
            steps.append(step)
            if time.perf_counter() - warm >= seconds:
                break
    memory_mib = peak_memory(task.device) / 2**20
    ceiling = Ceiling.of(task.device, task.precision, gemm_size=gemm_size)
    return {
        "precision": str(task.precision).removeprefix("torch."),
        "batch_tokens": task.config.training.batch_tokens,
        "warm_up_seconds": warm - begun,
        "initial_loss": initial_loss,
        "graphs": counters["stats"]["unique_graphs"],
        "graphs_compiled_while_measured": counters["stats"]["unique_graphs"] - num_graphs,
        "peak_memory_mib": memory_mib,
        **summary(steps, ceiling),
    }


def summary(steps: Sequence[Step], ceiling: Ceiling) -> dict[str, float | str]:
    """Return speeds and shares of the sums of some steps, and medians of single ones."""
    seconds = sum(step.seconds for step in steps)
    flops = sum(step.flops for step in steps) / seconds
    return {
        "steps": len(steps),
        "target_tokens_per_second": sum(step.target_tokens for step in steps) / seconds,
        "median_target_tokens_per_second": median(
            step.target_tokens / step.seconds for step in steps
        ),
        "target_tokens_per_step": median(step.target_tokens for step in steps),
        "step_seconds": median(step.seconds for step in steps),
        "slowest_step_seconds": max(step.seconds for step in steps),
        "model_tflops": flops / 1e12,
        **ceiling.shares(flops),
        "padding_share": 1 - sum(s.tokens for s in steps) / sum(s.positions for s in steps),
        "loader_share": sum(step.loading_seconds for step in steps) / seconds,
        "first_loss": steps[0].loss,
        "last_loss": steps[-1].loss,
    }


def idle(network: str, *, warm_up: int = 10, steps: int = 8, **options: Any) -> dict[str, object]:
    """Profile some steps of our training; `options` are those of `begin`.

    On a GPU its own work alone is traced, since tracing calls of the host slows them.
    """
    task, feed, losses = begin(network, "ours", **options)
    is_cuda = task.device.type == "cuda"
    activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    with contextlib.closing(feed):
        for _ in islice(losses, warm_up):
            pass
        synchronize(task.device)
        with profile(activities=[activity]) as profiler:
            loaded, started = feed.seconds, time.perf_counter()
            for _ in islice(losses, steps):
                pass
            synchronize(task.device)
            seconds = time.perf_counter() - started
            loading_seconds = feed.seconds - loaded
        num_waits = waits(losses) if is_cuda else None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return {
        "steps": steps,
        "seconds": seconds,
        "loader_share": loading_seconds / seconds,
        "waits_per_step": num_waits,
        **device_work(events, DEVICE_WORK[task.device.type], seconds, steps),
    }


def waits(losses: Iterator[float]) -> int:
    """Return how often the host waits for the GPU in a step."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        next(losses)
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught)


def device_work(
    events: Iterable[dict[str, Any]], work: set[str], seconds: float, steps: int
) -> dict[str, object]:
    """Return from the trace of some steps how long the device was idle, and what it did.

    `work` are the categories of its work. Times of a trace are in microseconds.
    """
    # Counters and names of threads have no duration.
    worked = [event for event in events if event.get("cat") in work and "dur" in event]
    if not worked:
        raise ValueError("the profiler has recorded no work of the device")
    times: Counter[str] = Counter()
    for event in worked:
        times[event["name"][:NAME_LENGTH]] += event["dur"]
    total = sum(times.values())
    busy = covered((event["ts"], event["ts"] + event["dur"]) for event in worked) / 1e6
    return {
        "idle_share": max(0.0, 1 - busy / seconds),
        "launches_per_step": len(worked) / steps,
        "top": {name: spent / total for name, spent in times.most_common(NUM_TOP)},
    }


def covered(intervals: Iterable[Interval]) -> float:
    """Return the time that some intervals, which may overlap, cover."""
    total, covered_until = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total
