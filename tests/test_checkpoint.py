import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from tformer_cli.checkpoint import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    SUMS_FILE,
    TRAINED_FILE,
    TrainingState,
    damage,
    load_average,
    load_optimizer,
    load_state,
    load_weights,
    save_checkpoint,
)
from tformer_cli.config.schema import AdamWConfig, EncoderDecoderConfig
from tformer_cli.errors import CheckpointError, StorageError
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
    left_out=((0, 5), (1, 2)),
    learning_rate_factor=0.25,
    num_rollbacks=2,
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


def test_the_optimizer_of_another_model_is_refused(saved):
    network = model(1, num_decoder_layers=1)
    with pytest.raises(CheckpointError) as caught:
        load_optimizer(saved, network, build_optimizer(AdamWConfig(), network))
    file, what, got, remedy = re.fullmatch(
        r"(.*): (.*); got (.*); (.*)", str(caught.value)
    ).groups()
    assert file == str(saved / "optimizer.safetensors")
    assert what == "belongs to another model than config.yaml describes"
    assert got.startswith("decoder.layers.1.")
    assert remedy == "restore the config.yaml that the run was trained with"


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


@pytest.mark.parametrize("room", [0, 100, 1000, 20_000], ids="{} bytes".format)
def test_a_checkpoint_is_there_as_a_whole_or_not_at_all(tmp_path, small_files, room):
    network = model(1)
    optimizer = stepped_optimizer(network)
    folder = tmp_path / "step-000007"
    with small_files(room), pytest.raises(StorageError) as caught:
        save_checkpoint(folder, network, optimizer, STATE)
    assert str(caught.value) == (
        f"{folder}: cannot be written; got File too large; "
        "raise the limit on the size of a file; what was saved before is intact"
    )
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_older_checkpoint_whole(saved, monkeypatch):
    def full_disk(*arguments: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    network = model(2)
    monkeypatch.setattr("tformer_cli.checkpoint.save_file", full_disk)
    for folder in (saved, saved.with_name("step-000008")):
        with pytest.raises(StorageError) as caught:
            save_checkpoint(folder, network, stepped_optimizer(network), STATE)
        assert str(caught.value) == (
            f"{folder}: cannot be written; got No space left on device; "
            "free space and run the same command again; what was saved before is intact"
        )
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
    assert list(saved.parent.iterdir()) == [saved]


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
    assert message(load_weights, saved, model(1)) == (
        f"{file}: is damaged or cut short; got Error while deserializing header: "
        "incomplete metadata, file not fully covered; use another checkpoint"
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
        f"{file}: was written by a newer tformer; this one reads format 2; got format 99; "
        "upgrade tformer"
    )


def test_checksums_are_those_of_sha256sum(saved):
    lines = (saved / SUMS_FILE).read_text().splitlines()
    files = sorted(set(saved.iterdir()) - {saved / SUMS_FILE})
    assert lines == [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}" for f in files]
    assert damage(saved) is None


@pytest.mark.parametrize("name", [MODEL_FILE, TRAINED_FILE, OPTIMIZER_FILE, STATE_FILE])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_bit_that_flips_is_found(tmp_path, name, place):
    network = model(1)
    folder = tmp_path / "step-000007"
    save_checkpoint(folder, network, stepped_optimizer(network), STATE, average=model(2))
    assert damage(folder) is None
    content = bytearray((folder / name).read_bytes())
    content[int(place * (len(content) - 1))] ^= 4
    (folder / name).write_bytes(content)
    assert str(damage(folder)) == f"{folder}: is damaged: {name} is not what was saved"
    # A translation needs no optimiser.
    is_needed = name in (MODEL_FILE, STATE_FILE)
    assert (damage(folder, (MODEL_FILE, STATE_FILE)) is not None) == is_needed


def test_a_checkpoint_that_is_not_whole_is_found(saved):
    other = saved.with_name("other")
    assert str(damage(other)) == f"{other}: is not there"
    for name in (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE):
        shutil.copytree(saved, other)
        (other / name).unlink()
        assert str(damage(other)) == f"{other}: is not whole: {name} is missing"
        shutil.rmtree(other)
    for content in (None, b"", b"\xff", b"\0" * 70, (saved / SUMS_FILE).read_bytes()[:-80]):
        shutil.copytree(saved, other)
        (other / SUMS_FILE).unlink() if content is None else (other / SUMS_FILE).write_bytes(
            content
        )
        assert damage(other) is not None
        shutil.rmtree(other)


def test_no_average_is_made_of_a_damaged_checkpoint(saved):
    file = saved / MODEL_FILE
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert message(load_average, [saved], model(1)) == (
        f"{saved}: is damaged: {MODEL_FILE} is not what was saved; "
        "train on for another one, or average fewer"
    )
