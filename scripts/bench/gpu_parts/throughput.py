"""How fast large models train, on made-up tokens: ours in several ways, and transformers' Marian.

All train one network on the same batches. It is Marian's, which ours can be configured to be: norms
behind the blocks, sine and cosine positions, one table of embeddings that is the output too,
dropout on embeddings and on the output of each block.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from gpu_parts.figures import Ceiling, Step, summary, training_flops, work_of
from torch import nn
from torch.profiler import record_function

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, ParallelText, TrainingText
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.pipeline import epoch_plans, training_micro_batches
from tformer_cli.corpus.prefetch import prefetch
from tformer_cli.corpus.store import PairWeights, TokenStore
from tformer_cli.device import peak_memory, resolve_device, resolve_precision
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.setup import PREFETCHED_BATCHES
from tformer_cli.training.step import NonFiniteStep, StepBatch, TrainState, train_steps

NETWORKS = {
    # The big model of Vaswani et al. 2017, table 3.
    "big": EncoderDecoderConfig(
        dim=1024,
        num_encoder_layers=6,
        num_decoder_layers=6,
        num_heads=16,
        feedforward_dim=4096,
        norm_position="post",
        attention_dropout=0.0,
        feedforward_dropout=0.0,
    ),
    "deep": EncoderDecoderConfig(
        dim=1024,
        num_encoder_layers=12,
        num_decoder_layers=6,
        num_heads=16,
        feedforward_dim=4096,
        norm_position="post",
        attention_dropout=0.0,
        feedforward_dropout=0.0,
    ),
}
SEED = 1
# Lengths of sentences are log-normal, those of a pair alike; the special ids are left out.
MEAN_LENGTH, LENGTH_SPREAD, RATIO_SPREAD, LONGEST = 25, 0.6, 0.2, 255
FIRST_WORD = 16
# Small, for the tokens have nothing to teach but their frequencies.
LEARNING_RATE = 1e-4
# What it is called in a trace when no batch is there yet.
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
        """The task as a config, whose text nobody reads."""
        nowhere = {"source": Path("none"), "target": Path("none")}
        return Config(
            seed=SEED,
            data=DataConfig(train=(TrainingText(**nowhere),), valid=ParallelText(**nowhere)),
            model=self.model,
            training=TrainingConfig(batch_tokens=self.batch_tokens),
        )

    def our_model(self) -> Seq2Seq:
        """Return our model with its first weights."""
        sizes = {"source_size": self.vocab_size, "target_size": self.vocab_size}
        return build_model(self.model, **sizes, seed=SEED).to(self.device)

    def train_state(self, model: nn.Module) -> TrainState:
        """Return a model with our optimiser."""
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
    """Makes the batches of each step as a training does: ahead, in a thread of its own.

    Attributes:
        group: the latest one.
        seconds: that somebody has waited for them so far.
    """

    def __init__(self, store: TokenStore, task: Task) -> None:
        plans = epoch_plans(store, batch_tokens=task.batch_tokens, seed=SEED)
        made = training_micro_batches(store, plans, accumulate=1, data_position=DataPosition())
        if task.device.type == "cuda":
            made = (([batch.pin_memory() for batch in batches], then) for batches, then in made)
        self._made = prefetch(made, PREFETCHED_BATCHES)
        self.group: StepBatch
        self.seconds = 0.0

    def close(self) -> None:
        """Make no more of them."""
        self._made.close()

    def __iter__(self) -> Iterator[StepBatch]:
        return self

    def __next__(self) -> StepBatch:
        started = time.perf_counter()
        with record_function(LOADING):
            batches, following = next(self._made)
        self.group = StepBatch(batches, DataPosition(), following)
        self.seconds += time.perf_counter() - started
        return self.group


def made_up_store(num_pairs: int, vocab_size: int) -> TokenStore:
    """Return pairs of Zipf-distributed tokens with the lengths of sentences."""
    random = np.random.default_rng(SEED)
    words = np.arange(FIRST_WORD, vocab_size, dtype=np.uint32)
    frequencies = 1 / np.arange(1, len(words) + 1)
    cumulative = np.cumsum(frequencies / frequencies.sum())

    def side(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.concatenate(([0], np.cumsum(np.clip(np.rint(lengths), 1, LONGEST))))
        drawn = np.searchsorted(cumulative, random.random(int(offsets[-1])))
        return words[np.minimum(drawn, len(words) - 1)], offsets.astype(np.int64)

    location = np.log(MEAN_LENGTH) - LENGTH_SPREAD**2 / 2
    lengths = random.lognormal(location, LENGTH_SPREAD, num_pairs)
    source_ids, source_offsets = side(lengths)
    target_ids, target_offsets = side(lengths * random.lognormal(0, RATIO_SPREAD, num_pairs))
    weights = PairWeights.of_runs([num_pairs], [1.0])
    return TokenStore(source_ids, source_offsets, target_ids, target_offsets, weights)


def our_losses(train_state: TrainState, feed: Feed) -> Iterator[float]:
    """Train by our loop; yield the loss of each step."""
    for taken in train_steps(train_state, feed):
        if isinstance(taken, NonFiniteStep):
            raise FloatingPointError(f"step {taken.step}: loss {taken.loss}, {taken.grad_norm}")
        if taken.num_pieces:
            raise MemoryError(f"step {taken.step} did not fit: redone in {taken.num_pieces} pieces")
        yield taken.loss


def ours(task: Task, feed: Feed) -> Iterator[float]:
    """Train our model as `tformer train` does."""
    return our_losses(task.train_state(task.our_model()), feed)


def ours_checkpointed(task: Task, feed: Feed) -> Iterator[float]:
    """Train our model, which computes its layers again in the backward pass."""
    model = task.our_model()
    model.enable_gradient_checkpointing()
    return our_losses(task.train_state(model), feed)


def ours_compiled(task: Task, feed: Feed) -> Iterator[float]:
    """Train our model, compiled for batches of any shape."""
    model = task.our_model()
    model.hidden_states = torch.compile(model.hidden_states, dynamic=True)
    return our_losses(task.train_state(model), feed)


def marian(task: Task, feed: Feed) -> Iterator[float]:
    """Train transformers' Marian in a loop as good as ours."""
    from peers.marian import build_marian
    from peers.marian_training import take_step

    side = SimpleNamespace(size=task.vocab_size)
    model = build_marian(
        task.config, SimpleNamespace(source=side, target=side), num_positions=LONGEST + 1
    )
    train_state = task.train_state(model.to(task.device))
    for step, group in enumerate(feed, start=1):
        yield take_step(train_state, list(group.micro_batches), step).loss


CONTESTANTS: dict[str, Callable[[Task, Feed], Iterator[float]]] = {
    "ours": ours,
    "checkpointed": ours_checkpointed,
    "compiled": ours_compiled,
    "marian": marian,
}


def measured(losses: Iterator[float], feed: Feed, task: Task) -> Iterator[Step]:
    """Yield what each step took."""
    while True:
        loaded, started = feed.seconds, time.perf_counter()
        loss = next(losses)
        seconds = time.perf_counter() - started
        work = [work_of(batch) for batch in feed.group.micro_batches]
        yield Step(
            seconds=seconds,
            loading_seconds=feed.seconds - loaded,
            target_tokens=sum(int(target.sum()) for _, target, _ in work),
            tokens=sum(int(source.sum() + target.sum()) for source, target, _ in work),
            positions=sum(positions for _, _, positions in work),
            flops=sum(
                training_flops(task.model, task.vocab_size, source, target)
                for source, target, _ in work
            ),
            loss=loss,
        )


def begin(
    network: str,
    contestant: str,
    *,
    device: str,
    precision: str,
    vocab_size: int,
    batch_tokens: int,
    num_pairs: int,
) -> tuple[Task, Feed, Iterator[float]]:
    """Return a task, what it is fed, and the training that has not begun."""
    place = resolve_device(device)
    task = Task(
        model=NETWORKS[network],
        vocab_size=vocab_size,
        batch_tokens=batch_tokens,
        device=place,
        precision=resolve_precision(precision, place),
    )
    feed = Feed(made_up_store(num_pairs, vocab_size), task)
    return task, feed, CONTESTANTS[contestant](task, feed)


def throughput(
    network: str,
    contestant: str = "ours",
    *,
    device: str = "cuda",
    precision: str = "bfloat16",
    vocab_size: int = 32_000,
    batch_tokens: int = 32_768,
    num_pairs: int = 100_000,
    warm_up: int = 10,
    seconds: float = 12.0,
    gemm_size: int = 8192,
) -> dict[str, object]:
    """Train for a while, and return the figures.

    Args:
        network: a key of NETWORKS.
        contestant: a key of CONTESTANTS.
        device: where.
        precision: number format of matrix products.
        vocab_size: of both sides.
        batch_tokens: padded tokens of a step on either side.
        num_pairs: sentences to draw batches from.
        warm_up: steps that do not count: memory is got and kernels are chosen, or compiled.
        seconds: of the steps that count; one at least.
        gemm_size: rows of the matrices that the device's peak is measured with.
    """
    task, feed, losses = begin(
        network,
        contestant,
        device=device,
        precision=precision,
        vocab_size=vocab_size,
        batch_tokens=batch_tokens,
        num_pairs=num_pairs,
    )
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
        "precision": precision,
        "batch_tokens": batch_tokens,
        "warm_up_seconds": warm - begun,
        "peak_memory_mib": memory_mib,
        **summary(steps, ceiling),
    }
