"""Something to save."""

import json

import pytest
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import AdamWConfig, OptimizerConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.integrity import write_checksums
from tformer_cli.storage.run_directory import CHECKSUMS_FILE, STATE_FILE, RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.optim import build_optimizer

STATE = TrainingProgress(
    step=7,
    data_position=(1, 3),
    best_step=4,
    best_score=12.5,
    num_tokens=1000,
    seconds=2.5,
    data_fingerprint="abc",
    environment={"torch": "2"},
    skipped_batches=((0, 5), (1, 2)),
    learning_rate_factor=0.25,
    num_rollbacks=2,
)


def model(seed: int, **changes: object) -> Seq2Seq:
    config = EncoderDecoderConfig(
        **{"dim": 12, "num_heads": 3, "feedforward_dim": 16, "num_encoder_layers": 1} | changes
    )
    return build_model(config, source_size=20, target_size=20, seed=seed)


def stepped_optimizer(
    network: Seq2Seq, config: OptimizerConfig | None = None
) -> torch.optim.Optimizer:
    optimizer = build_optimizer(config or AdamWConfig(), network)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def message(action, *arguments) -> str:
    with pytest.raises(CheckpointError) as caught:
        action(*arguments)
    return str(caught.value)


def remove_settings(run: RunDirectory) -> None:
    """Remove from the checkpoints of a run what older versions did not write: its settings."""
    for checkpoint in run.step_checkpoints():
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        del state["settings"], state["tokenizer_fingerprint"]
        (checkpoint / STATE_FILE).write_text(json.dumps(state | {"format_version": 2}))
        (checkpoint / CHECKSUMS_FILE).unlink()
        write_checksums(checkpoint)
