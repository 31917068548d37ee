"""GPU training speed of large models on synthetic tokens.

All train Marian's network on the same batches: post-norm, sinusoidal positions, tied embeddings,
dropout on embeddings and on the output of each block.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flops import Ceiling, training_flops
from torch import nn
from torch.profiler import record_function

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, ParallelText, TrainingText
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.batch import DataPosition, epoch_plans, training_micro_batches
from tformer_cli.corpus.prefetch import prefetch
from tformer_cli.corpus.store import PairWeights, TokenStore
from tformer_cli.device import peak_memory, resolve_device, resolve_precision
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.step import NonFiniteStep, StepBatch, TrainState, train_steps

# The big model of Vaswani et al. 2017, table 3, and one with a deep encoder.
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
NETWORKS = {"big": BIG, "deep": replace(BIG, num_encoder_layers=12)}
SEED = 1
# Sentence lengths are log-normal and those of a pair alike.
MEAN_LENGTH, LENGTH_SPREAD, RATIO_SPREAD, MAX_LENGTH = 25, 0.6, 0.2, 255
NUM_SPECIAL_IDS = 16
# Small, because the tokens have nothing to teach but their frequencies.
LEARNING_RATE = 1e-4
# Those of a training; `tformer_cli.training.setup` needs more packages than this file.
PREFETCHED_BATCHES = 2
# Its name in a trace.
LOADING = "waiting for a batch"


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained, and where."""

    model: EncoderDecoderConfig
    vocab_size: int
    batch_tokens: int
    device: torch.device
    precision: torch.dtype

    @property
    def config(self) -> Config:
        """The task as a config, whose text is never read."""
        no_text = {"source": Path("none"), "target": Path("none")}
        return Config(
            seed=SEED,
            data=DataConfig(train=(TrainingText(**no_text),), valid=ParallelText(**no_text)),
            model=self.model,
            training=TrainingConfig(batch_tokens=self.batch_tokens),
        )

    def our_model(self) -> Seq2Seq:
        """Return our model with its initial weights."""
        sizes = {"source_size": self.vocab_size, "target_size": self.vocab_size}
        return build_model(self.model, **sizes, seed=SEED).to(self.device)

    def train_state(self, model: nn.Module) -> TrainState:
        """Return a model with our optimizer."""
        training = self.config.training
        return TrainState(
            model=model,
            optimizer=build_optimizer(training.optimizer, model),
            scheduler=lambda step: LEARNING_RATE,
            config=training,
            device=self.device,
            precision=self.precision,
            seed=SEED,
        )


class Feed:
    """Makes the batches of each step in a thread ahead of it, as a training does.

    Attributes:
        batch: the latest one.
        seconds: time waited for batches.
    """

    def __init__(self, store: TokenStore, task: Task) -> None:
        plans = epoch_plans(store, batch_tokens=task.batch_tokens, seed=SEED)
        made = training_micro_batches(store, plans, accumulate=1, data_position=DataPosition())
        if task.device.type == "cuda":
            made = (([batch.pin_memory() for batch in batches], then) for batches, then in made)
        self._made = prefetch(made, PREFETCHED_BATCHES)
        self.batch: StepBatch | None = None
        self.seconds = 0.0

    def close(self) -> None:
        """Stop making batches."""
        self._made.close()

    def __iter__(self) -> Iterator[StepBatch]:
        return self

    def __next__(self) -> StepBatch:
        started = time.perf_counter()
        with record_function(LOADING):
            batches, following = next(self._made)
        self.batch = StepBatch(batches, DataPosition(), following)
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


Baseline = Callable[[Task, Feed], Iterator[float]]


def our_losses(state: TrainState, feed: Feed) -> Iterator[float]:
    """Train by our loop; yield the loss of each step."""
    for report in train_steps(state, feed):
        if isinstance(report, NonFiniteStep):
            raise FloatingPointError(f"step {report.step}: loss {report.loss}, {report.grad_norm}")
        if report.num_oom_micro_batches:
            pieces = report.num_oom_micro_batches
            raise MemoryError(f"step {report.step} did not fit: redone in {pieces} pieces")
        yield report.loss


def ours(prepare: Callable[[Seq2Seq], object] = lambda model: None) -> Baseline:
    """Return the training of our model as `tformer train` does it, after a preparation."""

    def losses(task: Task, feed: Feed) -> Iterator[float]:
        model = task.our_model()
        prepare(model)
        return our_losses(task.train_state(model), feed)

    return losses


def compile_any_shape(model: Seq2Seq) -> None:
    """Compile a model for batches of any shape."""
    model.hidden_states = torch.compile(model.hidden_states, dynamic=True)


def marian(task: Task, feed: Feed) -> Iterator[float]:
    """Train transformers' Marian in a loop as good as ours."""
    from baseline_marian import build_marian
    from marian_training import train_step

    side = SimpleNamespace(size=task.vocab_size)
    tokenizers = SimpleNamespace(source=side, target=side)
    model = build_marian(task.config, tokenizers, num_positions=MAX_LENGTH + 1)
    state = task.train_state(model.to(task.device))
    for step, batch in enumerate(feed, start=1):
        yield train_step(state, list(batch.micro_batches), step)[0]


BASELINES: dict[str, Baseline] = {
    "ours": ours(),
    "checkpointed": ours(lambda model: model.enable_gradient_checkpointing()),
    "compiled": ours(compile_any_shape),
    "marian": marian,
}


def begin(
    network: str,
    baseline: str,
    *,
    device: str = "cuda",
    precision: str = "bfloat16",
    vocab_size: int = 32_000,
    batch_tokens: int = 32_768,
    num_pairs: int = 100_000,
) -> tuple[Task, Feed, Iterator[float]]:
    """Return a task, its batches, and the losses of its training, which begins with the first.

    `batch_tokens` are padded tokens of a step on either side.
    """
    on = resolve_device(device)
    dtype = resolve_precision(precision, on)
    task = Task(NETWORKS[network], vocab_size, batch_tokens, on, dtype)
    feed = Feed(synthetic_store(num_pairs, vocab_size), task)
    return task, feed, BASELINES[baseline](task, feed)


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
    while True:
        loaded, started = feed.seconds, time.perf_counter()
        loss = next(losses)
        seconds = time.perf_counter() - started
        batches = feed.batch.micro_batches
        lengths = [
            [mask.sum(dim=1).numpy() for mask in (batch.source_mask, batch.target_mask)]
            for batch in batches
        ]
        yield Step(
            seconds=seconds,
            loading_seconds=feed.seconds - loaded,
            target_tokens=sum(int(target.sum()) for _, target in lengths),
            tokens=sum(int(source.sum() + target.sum()) for source, target in lengths),
            positions=sum(b.source_mask.numel() + b.target_mask.numel() for b in batches),
            flops=sum(
                training_flops(task.model, task.vocab_size, *pair, causal_share=0.5)
                for pair in lengths
            ),
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
    """Train for a while; return the results.

    Args:
        network: a key of NETWORKS.
        baseline: a key of BASELINES.
        warm_up: steps before those that count: kernels are chosen, or compiled.
        seconds: of the steps that count; there is at least one.
        gemm_size: rows of the matrices that measure the device's peak.
        options: of `begin`.
    """
    task, feed, losses = begin(network, baseline, **options)
    begun = time.perf_counter()
    steps: list[Step] = []
    with contextlib.closing(feed):
        for _ in islice(losses, warm_up):
            pass
        warm = time.perf_counter()
        for step in measured(losses, feed, task):
            steps.append(step)
            if time.perf_counter() - warm >= seconds:
                break
    memory_mib = peak_memory(task.device) / 2**20
    ceiling = Ceiling.of(task.device, task.precision, gemm_size=gemm_size)
    return {
        "precision": str(task.precision).removeprefix("torch."),
        "batch_tokens": task.batch_tokens,
        "warm_up_seconds": warm - begun,
        "peak_memory_mib": memory_mib,
        **summary(steps, ceiling),
    }


def summary(steps: Sequence[Step], ceiling: Ceiling) -> dict[str, float | str]:
    """Return medians of the speeds of some steps, and shares of their sums."""
    seconds = sum(step.seconds for step in steps)
    flops = median(step.flops / step.seconds for step in steps)
    return {
        "steps": len(steps),
        "target_tokens_per_second": median(step.target_tokens / step.seconds for step in steps),
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
