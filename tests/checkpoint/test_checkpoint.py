import re

import pytest
import torch
from safetensors import SafetensorError
from saving import STATE, message, model, stepped_optimizer

from tformer_cli.checkpoint.checkpoint import (
    load_average,
    load_optimizer,
    load_weights,
    save_checkpoint,
)
from tformer_cli.checkpoint.layout import (
    MODEL_FILE,
    STATE_FILE,
)
from tformer_cli.checkpoint.state import load_state
from tformer_cli.config.schema.optimizer import AdamWConfig
from tformer_cli.errors import CheckpointError, StorageError
from tformer_cli.training.optim import build_optimizer


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
    monkeypatch.setattr("tformer_cli.checkpoint.tensors.save_file", full_disk)
    for folder in (saved, saved.with_name("step-000008")):
        with pytest.raises(StorageError) as caught:
            save_checkpoint(folder, network, stepped_optimizer(network), STATE)
        assert str(caught.value) == (
            f"{folder}: cannot be written; got No space left on device; "
            "free space and run the same command again; what was saved before is intact"
        )
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
    assert list(saved.parent.iterdir()) == [saved]


def test_weights_of_another_shape_are_refused(saved):
    assert message(load_weights, saved, model(1, num_encoder_layers=2)) == (
        f"{saved / MODEL_FILE}: holds another model than config.yaml describes "
        "(16 weights differ); got encoder.layers.1.feedforward.inner.bias; "
        "restore the config.yaml that the run was trained with"
    )
    # Four decoder layers and one of the encoder, each with an inner and an outer weight and a bias.
    assert "(15 weights differ)" in message(load_weights, saved, model(1, feedforward_dim=17))


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(saved, number):
    network = model(1)
    weight = network.get_parameter("decoder.layers.0.self_attention.query.weight")
    with torch.no_grad():
        weight[3, 2] = number
    save_checkpoint(saved, network, stepped_optimizer(model(1)), STATE)
    with pytest.raises(CheckpointError) as caught:
        load_weights(saved, model(1))
    assert str(caught.value) == (
        f"{saved / MODEL_FILE}: holds numbers that are not finite (1 weights have some); "
        "got decoder.layers.0.self_attention.query.weight; use another checkpoint"
    )


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


def test_no_average_is_made_of_a_damaged_checkpoint(saved):
    file = saved / MODEL_FILE
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert message(load_average, [saved], model(1)) == (
        f"{saved}: is damaged: {MODEL_FILE} is not what was saved; "
        "train on for another one, or average fewer"
    )
