"""Baselines of train.py, and the process in which each trains.

All train Marian's network: post-norm, sinusoidal positions, tied embeddings, dropout on embeddings
and on the output of each block. Ours and Marian begin with the same weights and see the same
batches.
"""

import itertools
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from baseline_marian import build_marian, copy_weights, max_positions, mean_nll
from baseline_textbook import TextbookModel
from cli import CPU
from harness import process_report, serve
from marian_training import train_step
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
from tformer_cli.corpus.store import TokenStore
from tformer_cli.corpus.store_builder import evaluation_store, training_store
from tformer_cli.device import derive_seed, peak_memory, resolve_precision
from tformer_cli.evaluation.evaluate import LIKELIHOOD_BATCH_TOKENS, reference_likelihood
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.text.vocabulary import PAD_ID
from tformer_cli.training.step import StepBatch, StepReport, TrainState, train_steps


class Step(NamedTuple):
    """One optimizer step."""

    num_tokens: int  # target tokens with a loss: EOS has one, BOS and padding have none
    num_positions: int  # the same with padding
    loss: float  # smoothed cross-entropy per target token before the step, in nats


@dataclass(frozen=True, slots=True)
class Measurement:
    """Some steps in a row."""

    steps: int
    num_tokens: int
    num_positions: int
    seconds: float  # wall-clock time, making the batches included
    page_faults: int
    rss_mib: float  # peak since the process began

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second."""
        return self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Task:
    """What to train, and on what."""

    config: Config
    tokenizers: Tokenizers
    store: TokenStore
    precision: torch.dtype

    def our_model(self) -> Seq2Seq:
        """Return our model with its initial weights."""
        return build_model(
            self.config.model,
            source_size=self.tokenizers.source.size,
            target_size=self.tokenizers.target.size,
            seed=self.config.seed,
        )

    def train_state(self, model: nn.Module) -> TrainState:
        """Return a model with our optimizer and schedule."""
        training, seed = self.config.training, self.config.seed
        return TrainState.of(model, training, device=CPU, precision=self.precision, seed=seed)

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


class Ours:
    """tformer's model in its loop."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.train_state = task.train_state(task.our_model())

    def batches(self) -> Iterator[Batch]:
        return self.task.bucketed_batches()

    def steps(self, batches: Iterator[Batch]) -> Iterator[Step]:
        batches, fed = itertools.tee(batches)
        groups = (StepBatch([batch], DataPosition(), DataPosition()) for batch in fed)
        for batch, report in zip(batches, train_steps(self.train_state, groups), strict=False):
            assert isinstance(report, StepReport)
            yield Step(report.num_tokens, batch.target_out.numel(), report.loss)

    def valid_loss(self) -> float:
        return reference_likelihood(
            [self.train_state.model],
            batches_in_order(self.task.valid_store(), batch_tokens=LIKELIHOOD_BATCH_TOKENS),
            device=CPU,
            precision=self.task.precision,
        ).loss


class Marian:
    """transformers' Marian in a loop as good as ours: sorted batches, SDPA, fused optimizer."""

    def __init__(self, task: Task) -> None:
        self.task = task
        config, tokenizers = task.config, task.tokenizers
        model = build_marian(config, tokenizers, num_positions=max_positions(config, tokenizers))
        copy_weights(task.our_model(), model)
        self.train_state = task.train_state(model)

    def batches(self) -> Iterator[Batch]:
        return self.task.bucketed_batches()

    def steps(self, batches: Iterator[Batch]) -> Iterator[Step]:
        for number, batch in enumerate(batches, start=1):
            loss, _ = train_step(self.train_state, [batch], number)
            yield Step(batch.num_target_tokens, batch.target_out.numel(), loss)

    def valid_loss(self) -> float:
        return mean_nll(self.train_state.model, self.task.valid_store(), CPU)


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

    def steps(self, batches: Iterator[Batch]) -> Iterator[Step]:
        self.model.train()
        for batch in batches:
            logits = self.model(batch.source, batch.target_in)
            loss = self.criterion(logits.flatten(0, 1), batch.target_out.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            num_tokens = int((batch.target_out != PAD_ID).sum())
            yield Step(num_tokens, batch.target_out.numel(), loss.item())


BASELINES = {"ours": Ours, "hf": Marian, "textbook": Textbook}


def serve_training(name: str, precision: str, threads: str, folder: str, warm_up: str) -> None:
    """Train while asked to, by the config and the tokenizers of a folder."""
    # A heap with enough room looks like one that keeps freed memory, so this comes first.
    settings = process_report()
    torch.set_num_threads(int(threads))
    run = RunDirectory(Path(folder))
    config, tokenizers = load_config(run.config_file), load_tokenizers(run.tokenizer)
    store, _ = training_store(config.data, tokenizers)
    task = Task(config, tokenizers, store, resolve_precision(precision, CPU))
    baseline = BASELINES[name](task)
    steps = baseline.steps(baseline.batches())
    measure(steps, max_steps=int(warm_up))

    def answer(request: dict[str, float | None]) -> object:
        match request:
            case {"settings": _}:
                return settings
            case {"validate_after": num_steps}:
                return validated(BASELINES[name](task.with_schedule(num_steps, num_steps // 10)))
        return asdict(measure(steps, **request))

    serve(answer)


def measure(
    steps: Iterator[Step], *, max_steps: int | None = None, seconds: float | None = None
) -> Measurement:
    """Take a number of steps, or steps until some seconds have passed."""
    faults, started = _page_faults(), time.perf_counter()
    taken: list[Step] = []
    elapsed = 0.0
    while len(taken) != max_steps and (seconds is None or elapsed < seconds):
        taken.append(next(steps))
        elapsed = time.perf_counter() - started
    return Measurement(
        steps=len(taken),
        num_tokens=sum(step.num_tokens for step in taken),
        num_positions=sum(step.num_positions for step in taken),
        seconds=elapsed,
        page_faults=_page_faults() - faults,
        rss_mib=peak_memory(CPU) / 2**20,
    )


def validated(baseline: Ours | Marian) -> dict[str, float]:
    """Train from the initial weights to the end of the schedule, and validate."""
    steps = itertools.islice(
        baseline.steps(baseline.batches()), baseline.task.config.training.max_steps
    )
    num_tokens = sum(step.num_tokens for step in steps)
    return {"num_tokens": num_tokens, "valid_loss": baseline.valid_loss()}


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
