import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from saving import STATE, message, model, stepped_optimizer

from tformer_cli.config.schema.training import AdamConfig, AdamWConfig, MuonConfig
from tformer_cli.errors import CheckpointError, StorageError
from tformer_cli.storage.checkpoint import (
    load_average,
    load_optimizer,
    load_weights,
    read_tensors,
    save_checkpoint,
    stream_tensors,
)
from tformer_cli.storage.integrity import verify_checksums
from tformer_cli.storage.run_directory import (
    CHECKSUMS_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    RAW_MODEL_FILE,
    STATE_FILE,
)
from tformer_cli.storage.state import load_progress
from tformer_cli.training.optim import build_optimizer


def stored(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, in memory: load_file maps it, and the file is about to be replaced."""
    return {name: tensor.clone() for name, tensor in load_file(file).items()}


def test_the_optimizer_of_another_model_is_refused(saved):
    network = model(1, num_decoder_layers=1)
    with pytest.raises(CheckpointError) as caught:
        load_optimizer(saved, network, build_optimizer(AdamWConfig(), network))
    file, what, got, remedy = re.fullmatch(r"(.*): (.*) \((.*)\); (.*)", str(caught.value)).groups()
    assert file == str(saved / "optimizer.safetensors")
    assert what == "belongs to another model than config.yaml describes"
    assert got.startswith("decoder.layers.1.")
    assert remedy == "restore the config.yaml that the run was trained with"


@pytest.mark.parametrize("tie", ["none", "output", "all"])
def test_what_is_saved_comes_back_to_the_bit(tmp_path, tie):
    network = model(1, tie_embeddings=tie)
    optimizer = stepped_optimizer(network)
    folder = tmp_path / "checkpoints" / "step-000007"
    save_checkpoint(folder, network, optimizer, STATE)
    other = model(2, tie_embeddings=tie)
    other_optimizer = build_optimizer(AdamWConfig(), other)
    load_weights(folder, other)
    load_optimizer(folder, other, other_optimizer)
    assert load_progress(folder) == STATE
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        for key, moment in optimizer.state[one].items():
            assert torch.equal(moment, other_optimizer.state[two][key])


def test_checkpoints_with_the_weight_names_of_older_versions_load(tmp_path):
    network = model(1)
    optimizer = stepped_optimizer(network)
    folder = tmp_path / "step-000007"
    save_checkpoint(folder, network, optimizer, STATE)
    for name in (MODEL_FILE, OPTIMIZER_FILE):
        former = {
            key.replace("feedforward.up", "feedforward.inner").replace(
                "feedforward.down", "feedforward.outer"
            ): tensor
            for key, tensor in stored(folder / name).items()
        }
        assert former.keys() != stored(folder / name).keys()
        save_file(former, folder / name)
    other = model(2)
    other_optimizer = build_optimizer(AdamWConfig(), other)
    load_weights(folder, other)
    load_optimizer(folder, other, other_optimizer)
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
        f"{folder}: cannot be written (File too large); "
        "raise the limit on the size of a file; what was saved before is intact"
    )
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_older_checkpoint_whole(saved, monkeypatch):
    def full_disk(*arguments: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    network = model(2)
    monkeypatch.setattr("tformer_cli.storage.checkpoint.save_file", full_disk)
    for folder in (saved, saved.with_name("step-000008")):
        with pytest.raises(StorageError) as caught:
            save_checkpoint(folder, network, stepped_optimizer(network), STATE)
        assert str(caught.value) == (
            f"{folder}: cannot be written (No space left on device); "
            "free space and run the same command again; what was saved before is intact"
        )
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
    assert list(saved.parent.iterdir()) == [saved]


def test_weights_of_another_shape_are_refused(saved):
    assert message(load_weights, saved, model(1, num_encoder_layers=2)) == (
        f"{saved / MODEL_FILE}: differs in 16 of its weights from the model that config.yaml "
        "describes (encoder.layers.1.feedforward.down.bias); "
        "restore the config.yaml that the run was trained with"
    )
    # Four decoder layers and one of the encoder, each with an up and a down weight and a bias.
    assert "differs in 15 of its weights" in message(
        load_weights, saved, model(1, feedforward_dim=17)
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_in_another_number_format_are_refused(saved, dtype):
    weights = stored(saved / MODEL_FILE)
    name = "decoder.layers.0.self_attention.query.weight"
    save_file(weights | {name: weights[name].to(dtype)}, saved / MODEL_FILE)
    assert message(load_weights, saved, model(1)) == (
        f"{saved / MODEL_FILE}: holds 1 of its weights in an unsupported dtype "
        f"({str(dtype)[6:]} for {name}); restore the file, or use another checkpoint"
    )


NAME = "decoder.layers.0.self_attention.query.weight/exp_avg"


@pytest.mark.parametrize(
    ("changed", "got"),
    [
        (lambda moments: {key: x for key, x in moments.items() if key != NAME}, "nothing"),
        (lambda moments: moments | {NAME: moments[NAME].int()}, "int32 (12, 12)"),
        (lambda moments: moments | {NAME: moments[NAME][:1].clone()}, "float32 (1, 12)"),
    ],
    ids=["missing", "int", "shape"],
)
def test_moments_of_another_kind_are_refused_by_name(saved, changed, got):
    save_file(changed(stored(saved / OPTIMIZER_FILE)), saved / OPTIMIZER_FILE)
    network = model(1)
    optimizer = build_optimizer(AdamWConfig(), network)
    assert message(load_optimizer, saved, network, optimizer) == (
        f"{saved / OPTIMIZER_FILE}: must hold float32 numbers of shape (12, 12) for {NAME} "
        f"({got}); use an earlier checkpoint"
    )


@pytest.mark.parametrize("config", [AdamConfig(), AdamWConfig(), MuonConfig()])
def test_an_optimizer_has_all_its_moments_or_is_refused(saved, config):
    network = model(1)
    save_checkpoint(saved, network, stepped_optimizer(network, config), STATE)
    other = build_optimizer(config, network)
    moments = stored(saved / OPTIMIZER_FILE)
    for name in list(moments)[::17]:
        save_file({key: x for key, x in moments.items() if key != name}, saved / OPTIMIZER_FILE)
        assert f" for {name} (nothing)" in message(load_optimizer, saved, network, other)
    save_file({}, saved / OPTIMIZER_FILE)
    assert " (nothing); " in message(load_optimizer, saved, network, other)


def test_a_frozen_weight_has_no_moments(saved):
    network = model(1)
    network.output.weight.requires_grad_(False)
    optimizer = build_optimizer(AdamWConfig(), network)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    save_checkpoint(saved, network, optimizer, STATE)
    names = {name.rpartition("/")[0] for name in stored(saved / OPTIMIZER_FILE)}
    assert names == {name for name, x in network.named_parameters() if x.requires_grad}
    other = build_optimizer(AdamWConfig(), network)
    load_optimizer(saved, network, other)
    assert other.state.keys() == optimizer.state.keys()


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(saved, number):
    network = model(1)
    optimizer = stepped_optimizer(network)
    weight = network.get_parameter("decoder.layers.0.self_attention.query.weight")
    with torch.no_grad():
        weight[3, 2] = number
    save_checkpoint(saved, network, optimizer, STATE)
    with pytest.raises(CheckpointError) as caught:
        load_weights(saved, model(1))
    assert str(caught.value) == (
        f"{saved / MODEL_FILE}: holds numbers that are not finite in 1 of its weights "
        "(decoder.layers.0.self_attention.query.weight); restore the file, or use another "
        "checkpoint"
    )


def test_tensors_are_streamed_to_the_bytes_of_safetensors(tmp_path):
    names = ["a/step", "ab", 'b"', "ä", "中"]
    shapes = [torch.Size(shape) for shape in ((), (3, 5), (0, 2), (7,), (1, 1, 2))]
    tensors = [torch.randn(shape) for shape in shapes]
    for count in (0, 1, 5):
        file = tmp_path / f"{count}.safetensors"
        stream_tensors(dict(zip(names[:count], shapes, strict=False)), tensors[:count], file)
        assert file.read_bytes() == safetensors.torch.save(
            dict(zip(names[:count], tensors, strict=False))
        )


def test_a_cut_file_is_refused(saved):
    file = saved / MODEL_FILE
    file.write_bytes(file.read_bytes()[:-10])
    assert message(load_weights, saved, model(1)) == (
        f"{file}: is damaged or cut short (Error while deserializing header: "
        "incomplete metadata, file not fully covered); restore the file, or use another "
        "checkpoint"
    )


def test_a_missing_file_is_refused(saved):
    (saved / MODEL_FILE).unlink()
    assert message(load_weights, saved, model(1)) == (
        f"{saved / MODEL_FILE}: no such file; name another checkpoint"
    )
    (saved / STATE_FILE).unlink()
    assert message(load_progress, saved) == (
        f"{saved / STATE_FILE}: no such file; name another checkpoint, or train with `fresh=True`"
    )


def test_no_average_is_made_of_a_damaged_checkpoint(saved):
    file = saved / MODEL_FILE
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert message(load_average, [saved], model(1)) == (
        f"{saved}: is damaged: {MODEL_FILE} does not match its checksum; "
        "train on for another one, or average fewer"
    )


def test_checksums_are_those_of_sha256sum(saved):
    lines = (saved / CHECKSUMS_FILE).read_text().splitlines()
    files = sorted(set(saved.iterdir()) - {saved / CHECKSUMS_FILE})
    assert lines == [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}" for f in files]
    assert verify_checksums(saved) is None


@pytest.mark.parametrize("name", [MODEL_FILE, RAW_MODEL_FILE, OPTIMIZER_FILE, STATE_FILE])
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_a_bit_that_flips_is_found(tmp_path, name, share):
    network = model(1)
    folder = tmp_path / "step-000007"
    save_checkpoint(folder, network, stepped_optimizer(network), STATE, average=model(2))
    assert verify_checksums(folder) is None
    content = bytearray((folder / name).read_bytes())
    content[int(share * (len(content) - 1))] ^= 4
    (folder / name).write_bytes(content)
    assert (
        str(verify_checksums(folder)) == f"{folder}: is damaged: {name} does not match its checksum"
    )
    # A translation needs no optimizer.
    is_needed = name in (MODEL_FILE, STATE_FILE)
    assert (verify_checksums(folder, (MODEL_FILE, STATE_FILE)) is not None) == is_needed


def test_a_checkpoint_that_is_not_whole_is_found(saved):
    other = saved.with_name("other")
    assert str(verify_checksums(other)) == f"{other}: does not exist"
    for name in (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE):
        shutil.copytree(saved, other)
        (other / name).unlink()
        assert str(verify_checksums(other)) == f"{other}: is incomplete: {name} is missing"
        shutil.rmtree(other)
    for content in (None, b"", b"\xff", b"\0" * 70, (saved / CHECKSUMS_FILE).read_bytes()[:-80]):
        shutil.copytree(saved, other)
        (other / CHECKSUMS_FILE).unlink() if content is None else (
            other / CHECKSUMS_FILE
        ).write_bytes(content)
        assert verify_checksums(other) is not None
        shutil.rmtree(other)


@pytest.mark.parametrize("name", [MODEL_FILE, STATE_FILE, CHECKSUMS_FILE])
def test_a_pipe_in_place_of_a_file_is_not_read(saved, name):
    """Whoever reads it waits for ever."""
    (saved / name).unlink()
    os.mkfifo(saved / name)
    expected = {
        CHECKSUMS_FILE: f"is incomplete: {CHECKSUMS_FILE} is missing or damaged",
    }.get(name, f"is damaged: {name} cannot be read (no regular file)")
    assert str(verify_checksums(saved)) == f"{saved}: {expected}"


def test_tensors_are_not_read_from_a_pipe(tmp_path):
    os.mkfifo(tmp_path / MODEL_FILE)
    with pytest.raises(CheckpointError) as caught:
        list(read_tensors(tmp_path / MODEL_FILE))
    assert str(caught.value) == (
        f"{tmp_path}/{MODEL_FILE}: is damaged or cut short (no regular file); "
        "restore the file, or use another checkpoint"
    )
