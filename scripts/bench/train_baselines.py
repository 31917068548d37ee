"""Baselines of train.py, and the process in which each trains.

All train Marian's network: post-norm, sinusoidal positions, tied embeddings, dropout on embeddings
and on the output of each block. Ours and Marian begin with the same weights and see the same
batches.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from baseline_marian import marian_like, marian_steps, max_positions, mean_nll
from baseline_textbook import TextbookModel
from flops import CPU
from torch import nn

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.training import CosineSchedule
from tformer_cli.corpus.batch import (
    Batch,
    DataPosition,
    batches_in_order,
    collate,
    epoch_plans,
    training_micro_batches,
)
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store import TokenStore
from tformer_cli.corpus.store_builder import evaluation_store, training_store
from tformer_cli.device import derive_seed, peak_memory, resolve_precision
from tformer_cli.evaluation.likelihood import LIKELIHOOD_BATCH_TOKENS, reference_likelihood
from tformer_cli.model.network import Network
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.text.vocabulary import PAD_ID
from tformer_cli.training.setup import init_model
from tformer_cli.training.step import NonFiniteStep, StepBatch, TrainState, train_steps


@dataclass(frozen=True, slots=True)
class Task:
    """What to train, on what, and where."""

    config: Config
    tokenizers: Tokenizers
    store: TokenStore
    precision: torch.dtype = torch.float32
    device: torch.device = CPU

    @classmethod
    def of(cls, config: Config, tokenizers: Tokenizers | None = None) -> "Task":
        """Return the training of a config, with its text; without tokenizers they are built."""
        tokenizers = tokenizers or build_tokenizers(
            config.tokenizer, lambda: read_texts(config.data.train), config.seed
        )
        store, _ = training_store(config.data, tokenizers)
        return cls(config, tokenizers, store)

    def our_model(self) -> Network:
        """Return our model with its initial weights."""
        return init_model(self.config, self.tokenizers)

    def train_state(self, model: nn.Module) -> TrainState:
        """Return a model, moved to the device, with our optimizer and schedule."""
        settings = {"precision": self.precision, "seed": self.config.seed}
        model = model.to(self.device)
        return TrainState.of(model, self.config.training, device=self.device, **settings)

    def num_positions(self) -> int:
        """Return the positions that Marian needs."""
        return max_positions(self.config, self.tokenizers)

    def bucketed_batches(self) -> Iterator[Batch]:
        """Yield our batches, without end."""
        batch_tokens = self.config.training.batch_tokens
        plans = epoch_plans(self.store, batch_tokens=batch_tokens, seed=self.config.seed)
        for (batch,), _ in training_micro_batches(
            self.store, plans, accumulate=1, data_position=DataPosition()
        ):
            yield batch

    def random_batches(self) -> Iterator[Batch]:
        """Yield batches of as many sentences as have `batch_tokens` target tokens on average."""
        mean_length = float(np.mean(self.store.target_lengths + 1))
        rows = max(1, round(self.config.training.batch_tokens / mean_length))
        random = np.random.default_rng(self.config.seed)
        while True:
            order = random.permutation(len(self.store))
            for start in range(0, len(order), rows):
                yield collate(self.store.examples(order[start : start + rows]))

    def with_schedule(self, steps: int, warmup_steps: int) -> "Task":
        """Return the task with a cosine schedule of some steps."""
        schedule = CosineSchedule(warmup_steps=warmup_steps)
        training = replace(self.config.training, schedule=schedule, max_steps=steps)
        return replace(self, config=replace(self.config, training=training))

    def valid_store(self) -> TokenStore:
        """Return the validation text."""
        return evaluation_store(self.config.data.valid, self.tokenizers)


def step_batches(batches: Iterable[Batch]) -> Iterator[StepBatch]:
    """Yield each batch as that of an optimizer step."""
    return (StepBatch([batch], DataPosition(), DataPosition()) for batch in batches)


class Ours:
    """tformer's model in its loop."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.train_state = task.train_state(task.our_model())

    def batches(self) -> Iterator[Batch]:
        return self.task.bucketed_batches()

    def losses(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Take a step per batch; yield its smoothed loss per target token before it, in nats."""
        for report in train_steps(self.train_state, step_batches(batches)):
            # What is skipped or done in pieces is no measurement.
            if isinstance(report, NonFiniteStep) or report.num_oom_micro_batches:
                raise RuntimeError(f"no plain step: {report}")
            yield report.loss

    def valid_loss(self) -> float:
        return reference_likelihood(
            [self.train_state.model],
            batches_in_order(self.task.valid_store(), batch_tokens=LIKELIHOOD_BATCH_TOKENS),
            device=self.task.device,
            precision=self.task.precision,
        ).loss


class Marian:
    """transformers' Marian in a loop as good as ours: sorted batches, SDPA, fused optimizer."""

    def __init__(self, task: Task) -> None:
        self.task = task
        positions = {"num_positions": task.num_positions()}
        model = marian_like(task.our_model(), task.config, task.tokenizers, **positions)
        self.train_state = task.train_state(model)

    def batches(self) -> Iterator[Batch]:
        return self.task.bucketed_batches()

    def losses(self, batches: Iterable[Batch]) -> Iterator[float]:
        return marian_steps(self.train_state, step_batches(batches))

    def valid_loss(self) -> float:
        return mean_nll(self.train_state.model, self.task.valid_store())


class Textbook:
    """torch's nn.Transformer in the loop of tutorials."""

    def __init__(self, task: Task) -> None:
        self.task = task
        config, size = task.config, task.tokenizers.target.size
        torch.manual_seed(derive_seed(config.seed, "textbook"))
        self.model = TextbookModel(config.model, size, config.data.filters.max_length + 1)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.training.optimizer.learning_rate
        )
        self.criterion = nn.CrossEntropyLoss(
            ignore_index=PAD_ID, label_smoothing=config.training.label_smoothing
        )

    def batches(self) -> Iterator[Batch]:
        return self.task.random_batches()

    def losses(self, batches: Iterable[Batch]) -> Iterator[float]:
        self.model.train()
        for batch in batches:
            logits = self.model(batch.source, batch.target_in)
            loss = self.criterion(logits.flatten(0, 1), batch.target_out.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            yield loss.item()


BASELINES = {"ours": Ours, "hf": Marian, "textbook": Textbook}


def serve_training(
    name: str, precision: str, threads: int, folder: str, warm_up: int
) -> Callable[[dict[str, Any]], object]:
    """Return what trains when asked to, by the config and the tokenizers of a folder."""
    torch.set_num_threads(threads)
    run = RunDirectory(Path(folder))
    task = Task.of(load_config(run.config_file), load_tokenizers(run.tokenizer))
    task = replace(task, precision=resolve_precision(precision, CPU))
    baseline = BASELINES[name](task)
    steps = steps_of(baseline.batches(), baseline.losses)
    for _ in itertools.islice(steps, warm_up):
        pass

    def answer(request: dict[str, Any]) -> object:
        match request:
            case {"validate_after": num_steps}:
                return validated(BASELINES[name](task.with_schedule(num_steps, num_steps // 10)))
        return asdict(measure(steps, **request))

    return answer


@dataclass(frozen=True, slots=True)
class Step:
    """An optimizer step that has been taken."""

    batch: Batch
    loss: float  # smoothed, per target token before the step, in nats
    seconds: float  # wall-clock time, making the batch included
    loading_seconds: float  # of these, waiting for the batch


def steps_of(
    batches: Iterable[Batch], losses: Callable[[Iterable[Batch]], Iterator[float]]
) -> Iterator[Step]:
    """Take a step for each batch, and time it."""
    batches, fed = itertools.tee(batches)
    taken = losses(fed)
    started = time.perf_counter()
    for batch in batches:
        loaded = time.perf_counter()
        loss = next(taken)
        ended = time.perf_counter()
        yield Step(batch, loss, ended - started, loaded - started)
        started = time.perf_counter()


@dataclass(frozen=True, slots=True)
class Measurement:
    """Some optimizer steps in a row."""

    num_tokens: int  # target tokens with a loss: EOS has one, BOS and padding have none
    seconds: float
    rss_mib: float  # peak since the process began

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second."""
        return self.num_tokens / self.seconds


def measure(steps: Iterator[Step], seconds: float) -> Measurement:
    """Take steps until some seconds have passed, one at least."""
    num_tokens, elapsed = 0, 0.0
    for step in steps:
        num_tokens += step.batch.num_target_tokens
        elapsed += step.seconds
        if elapsed >= seconds:
            break
    return Measurement(num_tokens, elapsed, peak_memory(CPU) / 2**20)


def validated(baseline: Ours | Marian) -> dict[str, float]:
    """Train from the initial weights to the end of the schedule, and validate."""
    max_steps = baseline.task.config.training.max_steps
    batches = list(itertools.islice(baseline.batches(), max_steps))
    for _ in baseline.losses(batches):
        pass
    num_tokens = sum(batch.num_target_tokens for batch in batches)
    return {"num_tokens": num_tokens, "valid_loss": baseline.valid_loss()}
