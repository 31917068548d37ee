import json
from pathlib import Path

import pytest
import torch

from tformer_cli.checkpoint import (
    MODEL_FILE,
    STATE_FILE,
    TrainingState,
    load_optimizer,
    load_state,
    load_weights,
    save_checkpoint,
)
from tformer_cli.config.schema import AdamWConfig, EncoderDecoderConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.model.seq2seq import Seq2Seq, build_model
from tformer_cli.training.optim import build_optimizer

STATE = TrainingState(
    step=7,
    epoch=1,
    batch=3,
    best_step=4,
    best_score=12.5,
    num_tokens=1000,
    seconds=2.5,
    data_fingerprint="abc",
    environment={"torch": "2"},
)


def model(seed: int, **changes: object) -> Seq2Seq:
    config = EncoderDecoderConfig(
        **{"dim": 12, "num_heads": 3, "feedforward_dim": 16, "num_encoder_layers": 1} | changes
    )
    return build_model(config, source_size=20, target_size=20, seed=seed)


def stepped_optimizer(network: Seq2Seq) -> torch.optim.Optimizer:
    optimizer = build_optimizer(AdamWConfig(), network)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    network = model(1)
    save_checkpoint(tmp_path / "step-000007", network, stepped_optimizer(network), STATE)
    return tmp_path / "step-000007"


@pytest.mark.parametrize("tie", ["none", "output", "all"])
def test_what_is_saved_comes_back_to_the_bit(tmp_path, tie):
    network = model(1, tie=tie)
    optimizer = stepped_optimizer(network)
    folder = tmp_path / "checkpoints" / "step-000007"
    save_checkpoint(folder, network, optimizer, STATE)
    other = model(2, tie=tie)
    other_optimizer = build_optimizer(AdamWConfig(), other)
    load_weights(folder, other)
    load_optimizer(folder, other, other_optimizer)
    assert load_state(folder) == STATE
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        for key, moment in optimizer.state[one].items():
            assert torch.equal(moment, other_optimizer.state[two][key])


def test_a_checkpoint_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    network = model(1)
    optimizer = stepped_optimizer(network)

    def full_disk(*arguments: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("tformer_cli.checkpoint.save_file", full_disk)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(tmp_path / "step-000007", network, optimizer, STATE)
    assert not list(tmp_path.iterdir())


def message(action, *arguments) -> str:
    with pytest.raises(CheckpointError) as caught:
        action(*arguments)
    return str(caught.value)


def test_weights_of_another_shape_are_refused(saved):
    assert message(load_weights, saved, model(1, num_encoder_layers=2)) == (
        f"{saved / MODEL_FILE}: holds another model than config.yaml describes "
        "(16 weights differ); got encoder.layers.1.feedforward.inner.bias; "
        "restore the config.yaml that the run was trained with"
    )
    # Four decoder layers and one of the encoder, each with an inner and an outer weight and a bias.
    assert "(15 weights differ)" in message(load_weights, saved, model(1, feedforward_dim=17))


def test_a_cut_file_is_refused(saved):
    file = saved / MODEL_FILE
    file.write_bytes(file.read_bytes()[:-10])
    assert message(load_weights, saved, model(1)).startswith(
        f"{file}: is damaged or cut short; got "
    )


def test_a_missing_file_is_refused(saved):
    (saved / MODEL_FILE).unlink()
    assert message(load_weights, saved, model(1)) == (
        f"{saved / MODEL_FILE}: no such file; name another checkpoint"
    )
    (saved / STATE_FILE).unlink()
    assert message(load_state, saved) == (
        f"{saved / STATE_FILE}: no such file; name another checkpoint, or train with --fresh"
    )


@pytest.mark.parametrize("content", ["", "[]", "{", '{"step": 3}'])
def test_a_damaged_state_is_refused(saved, content):
    (saved / STATE_FILE).write_text(content)
    found = message(load_state, saved)
    assert found.startswith(f"{saved / STATE_FILE}: is damaged; got ")
    assert found.endswith("; use an earlier checkpoint")


def test_a_newer_format_is_refused(saved):
    file = saved / STATE_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 99}))
    assert message(load_state, saved) == (
        f"{file}: was written by a newer tformer; this one reads format 1; got format 99; "
        "upgrade tformer"
    )
