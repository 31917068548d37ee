"""GPU training speed of large models on synthetic tokens, and why the GPU is idle meanwhile.

All train Marian's network on the same batches: post-norm, sinusoidal positions, tied embeddings,
dropout on embeddings and on the output of each block.
"""

import contextlib
import json
import re
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
from flops import gemm_flops, synchronize, training_flops
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile
from train_baselines import (
    BASE,
    BIG,
    CONFIG,
    PLAIN,
    Step,
    marian_state,
    network,
    steps_of,
    take_steps,
)

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.store import PairWeights, TokenStore
from tformer_cli.device import (
    can_compile,
    hardware_name,
    peak_memory,
    resolve_device,
    resolve_precision,
)
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.text.special_tokens import BOS_ID
from tformer_cli.training.setup import TrainingData
from tformer_cli.training.step import StepBatch, TrainState

# In those of tiny, kernels take less time than their launches.
NETWORKS = {"big": BIG, "base": BASE, "tiny": network(128, 2, 4, 256)}
# Ours as a training has it, with layers and loss compiled, or with nothing compiled; transformers'
# Marian as it is, or compiled for batches of any shape.
BASELINES = {"ours": "ours", "eager": "ours", "marian": "hf", "marian-compiled": "hf"}
SEED = 1
# Sentence lengths are log-normal and those of a pair alike.
MEAN_LENGTH, LENGTH_SPREAD, RATIO_SPREAD, MAX_LENGTH = 25, 0.6, 0.2, 255
NUM_SPECIAL_IDS = 16
# Dense bfloat16 operations per second by the data sheets, of SXM modules where there are any.
DATA_SHEETS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}
# Cards of the same names that are slower than the modules.
SLOWER_FORMS = {"PCIe", "NVL"}
# Categories of a trace.
DEVICE_WORK = {"cuda": {"kernel", "gpu_memcpy", "gpu_memset"}, "cpu": {"cpu_op"}}
NUM_TOP, NAME_LENGTH = 15, 100


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
    """Return the config of a network, whose text is not read."""
    # A small rate, because the tokens have nothing to teach but their frequencies.
    optimizer = "training.optimizer={kind: adamw, learning_rate: 1e-4}"
    training = (optimizer, f"training.batch_tokens={batch_tokens}", "model.dropout=0.1")
    return load_config(CONFIG, [*PLAIN, *NETWORKS[network], *training])


def synthetic_model(network: str, vocab_size: int) -> Seq2Seq:
    """Return a network with its initial weights."""
    sizes = {"source_size": vocab_size, "target_size": vocab_size}
    return build_model(synthetic_config(network).model, **sizes, seed=SEED)


@dataclass(frozen=True, slots=True)
class Training:
    """A training on synthetic tokens."""

    config: Config
    vocab_size: int
    state: TrainState
    batches: Generator[StepBatch]  # which a thread makes ahead
    steps: Iterator[Step]

    @classmethod
    def begin(
        cls,
        network: str,
        baseline: str,
        *,
        device: str = "cuda",
        precision: str = "bfloat16",
        vocab_size: int = 37_000,
        batch_tokens: int = 32_768,
        num_pairs: int = 100_000,
    ) -> Self:
        """Build a model; `batch_tokens` are padded tokens of a step on either side."""
        on, name = resolve_device(device), BASELINES[baseline]
        config = synthetic_config(network, batch_tokens)
        settings = {"precision": resolve_precision(precision, on), "seed": SEED}
        model = synthetic_model(network, vocab_size).to(on)
        if baseline == "ours" and can_compile(on):
            model.compile_layers()
        state = TrainState.of(model, config.training, device=on, **settings)
        if name == "hf":
            side = SimpleNamespace(size=vocab_size)
            state = marian_state(state, config, SimpleNamespace(source=side, target=side))
        if baseline == "marian-compiled":
            state.model.compile(dynamic=True)
        store = synthetic_store(num_pairs, vocab_size)
        data = TrainingData(config, store, report=None, start_id=BOS_ID, masking=None)
        batches = data.batches(state)
        return cls(config, vocab_size, state, batches, steps_of(name, state, batches))


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

    The device's peak is measured by matrices of `gemm_size` rows; `options` go to `Training.begin`.
    """
    training = Training.begin(network, baseline, **options)
    state, steps = training.state, training.steps
    stance = "force_eager" if baseline == "eager" else "default"
    begun = time.perf_counter()
    with contextlib.closing(training.batches), torch.compiler.set_stance(stance):
        first, *_ = islice(steps, warm_up)
        warm, num_graphs = time.perf_counter(), counters["stats"]["unique_graphs"]
        taken = take_steps(steps, seconds)
    memory_mib = peak_memory(state.device) / 2**20
    gemm = gemm_flops(state.device, state.precision, (gemm_size,) * 3, products=10)
    data_sheet = data_sheet_flops(hardware_name(state.device), state.precision)
    flops = sum(flops_of(batch, training) for step in taken for batch in step.batches)
    return {
        "precision": str(state.precision).removeprefix("torch."),
        "batch_tokens": training.config.training.batch_tokens,
        "warm_up_seconds": warm - begun,
        "initial_loss": first.loss,
        "graphs": counters["stats"]["unique_graphs"],
        "graphs_compiled_while_measured": counters["stats"]["unique_graphs"] - num_graphs,
        "peak_memory_mib": memory_mib,
        **summary(taken, flops, gemm, data_sheet),
    }


def data_sheet_flops(device_name: str, precision: torch.dtype) -> float | None:
    """Return the dense operations per second of a device, or None if unknown."""
    words = set(re.split(r"[\s-]+", device_name))
    if precision != torch.bfloat16 or words & SLOWER_FORMS:
        return None
    return next((flops for name, flops in DATA_SHEETS.items() if name in words), None)


def summary(
    steps: Sequence[Step], flops: float, gemm: float, data_sheet: float | None
) -> dict[str, float | str]:
    """Return speeds and shares of the sums of some steps, and medians of single ones.

    `flops` are the operations that the model needs for all. `gemm` and `data_sheet` are those per
    second of the device: measured, and by its data sheet if known.
    """
    batches = [batch for step in steps for batch in step.batches]
    seconds = sum(step.seconds for step in steps)
    target_tokens = [step.num_target_tokens for step in steps]
    num_tokens = sum(target_tokens) + sum(int(batch.source_mask.sum()) for batch in batches)
    num_positions = sum(x.source_mask.numel() + x.target_mask.numel() for x in batches)
    flops_per_second = flops / seconds
    peak = data_sheet or gemm
    return {
        "steps": len(steps),
        "target_tokens_per_second": sum(target_tokens) / seconds,
        "target_tokens_per_step": median(target_tokens),
        "step_seconds": median(step.seconds for step in steps),
        "slowest_step_seconds": max(step.seconds for step in steps),
        "model_tflops": flops_per_second / 1e12,
        "mfu": flops_per_second / peak,
        "mfu_of": "data sheet" if data_sheet else "measured GEMM, no data sheet known",
        "share_of_gemm": flops_per_second / gemm,
        "peak_tflops": peak / 1e12,
        "gemm_tflops": gemm / 1e12,
        "padding_share": 1 - num_tokens / num_positions,
        "loader_share": sum(step.loading_seconds for step in steps) / seconds,
        "last_loss": steps[-1].loss,
    }


def flops_of(batch: Batch, training: Training) -> float:
    """Return the operations that the model needs for a batch."""
    lengths = (mask.sum(dim=1).numpy() for mask in (batch.source_mask, batch.target_mask))
    model, vocab_size = training.config.model, training.vocab_size
    return training_flops(model, vocab_size, *lengths, causal_share=0.5)


def idle(network: str, *, warm_up: int = 10, steps: int = 8, **options: Any) -> dict[str, object]:
    """Profile some steps of our training; `options` are those of `Training.begin`.

    On a GPU its own work alone is traced, since tracing calls of the host slows them.
    """
    training = Training.begin(network, "ours", **options)
    taken, device = training.steps, training.state.device
    is_cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    with contextlib.closing(training.batches), tempfile.TemporaryDirectory() as folder:
        for _ in islice(taken, warm_up):
            pass
        synchronize(device)
        with profile(activities=[activity]) as profiler:
            started = time.perf_counter()
            loading_seconds = sum(step.loading_seconds for step in islice(taken, steps))
            synchronize(device)
            seconds = time.perf_counter() - started
        num_waits = waits(taken) if is_cuda else None
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return {
        "steps": steps,
        "seconds": seconds,
        "loader_share": loading_seconds / seconds,
        "waits_per_step": num_waits,
        **device_work(events, DEVICE_WORK[device.type], seconds, steps),
    }


def waits(steps: Iterator[Step]) -> int:
    """Return how often the host waits for the GPU in a step."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        next(steps)
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
    return {
        # On a GPU, work of a stream does not overlap.
        "idle_share": max(0.0, 1 - total / 1e6 / seconds),
        "launches_per_step": len(worked) / steps,
        "top": {name: spent / total for name, spent in times.most_common(NUM_TOP)},
    }
