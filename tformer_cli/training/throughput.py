"""How fast a machine trains a config, measured on random tokens: it takes no text."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.store import TokenStore, build_store
from tformer_cli.device import resolve_precision
from tformer_cli.model.build import build_network
from tformer_cli.process import tune_allocator
from tformer_cli.text.special_tokens import BOS_ID, NUM_SPECIAL
from tformer_cli.training.setup import TrainingData
from tformer_cli.training.step import NonFiniteStep, StepReport, TrainState, train_steps

NUM_PAIRS = 5_000
MEAN_LENGTH = 12
# The first steps also allocate memory and create kernels.
WARMUP_STEPS = 3


@dataclass(frozen=True, slots=True)
class Throughput:
    """The speed of some training steps, and what it means for a whole training."""

    tokens_per_second: float  # target tokens
    seconds_per_step: float
    max_steps: int

    @property
    def seconds(self) -> float:
        """Seconds of all steps, validations not counted."""
        return self.max_steps * self.seconds_per_step


def measure_throughput(
    config: Config,
    *,
    device: torch.device,
    seconds: float,
    on_step: Callable[[], object] = lambda: None,
) -> Throughput:
    """Train a new model on random sentences for some seconds, or some steps if they take longer.

    Lengths are distributed as in captions, about 12 tokens a sentence. Layers are not compiled, as
    those of a training on a CUDA GPU are.

    Args:
        config: of a model that translates, with subword tokenizers. Its text is not read.
        device: where to train, in the precision of the config.
        seconds: when to stop.
        on_step: called after each step.
    """
    assert isinstance(config.tokenizer, SubwordConfig)
    tune_allocator()
    size = config.tokenizer.vocab_size
    model = build_network(config.model, source_size=size, target_size=size, seed=config.seed)
    state = TrainState.of(
        model.to(device),
        config.training,
        device=device,
        precision=resolve_precision(config.training.precision, device),
        seed=config.seed,
    )
    data = TrainingData(config, random_store(size, config.seed), FilterReport(), BOS_ID, None)
    reports: list[StepReport] = []
    deadline = time.perf_counter() + seconds
    with contextlib.closing(data.batches(state)) as batches:
        for step in train_steps(state, batches):
            assert not isinstance(step, NonFiniteStep), "the warm-up has just begun"
            reports.append(step)
            on_step()
            if len(reports) > WARMUP_STEPS and time.perf_counter() >= deadline:
                break
    measured = reports[WARMUP_STEPS:]
    elapsed = sum(report.seconds for report in measured)
    num_tokens = sum(report.num_tokens for report in measured)
    return Throughput(num_tokens / elapsed, elapsed / len(measured), config.training.max_steps)


def random_store(vocab_size: int, seed: int) -> TokenStore:
    """Return pairs of random sentences of similar lengths."""
    random = np.random.default_rng(seed)
    lengths = 1 + random.poisson(MEAN_LENGTH - 1, NUM_PAIRS)
    targets = np.maximum(1, lengths + random.integers(-2, 3, NUM_PAIRS))

    def sentence(length: int) -> list[int]:
        ids: list[int] = random.integers(NUM_SPECIAL, vocab_size, length).tolist()
        return ids

    return build_store(
        (sentence(source), sentence(target))
        for source, target in zip(lengths.tolist(), targets.tolist(), strict=True)
    )
