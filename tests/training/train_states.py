"""A model small enough to learn in milliseconds, and what it learns from."""

from collections.abc import Iterator
from itertools import repeat

import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import AdamConfig, TrainingConfig
from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.store import Example
from tformer_cli.model.build import build_model
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.optim import build_optimizer
from tformer_cli.training.step import StepBatch, TrainState

V = 29
INITIAL = TrainingProgress(data_fingerprint="abc")


def train_state(
    rate: float = 0.01, *, dropout: float = 0.1, progress: TrainingProgress = INITIAL, **settings
) -> TrainState:
    config = EncoderDecoderConfig(
        dim=12,
        num_heads=3,
        feedforward_dim=16,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout=dropout,
    )
    model = build_model(config, source_size=V, target_size=V, seed=2)
    return TrainState(
        model=model,
        optimizer=build_optimizer(AdamConfig(), model),
        scheduler=lambda step: rate,
        config=TrainingConfig(**settings),
        device=torch.device("cpu"),
        precision=torch.float32,
        seed=1,
        progress=progress,
    )


def batch() -> Batch:
    return collate([Example(0, [7, 8], [9, 10, 11]), Example(1, [12], [13])])


def step_batches(*micro_batches: Batch) -> Iterator[StepBatch]:
    return repeat(StepBatch(micro_batches, DataPosition(0, 0), DataPosition(0, 1)))
