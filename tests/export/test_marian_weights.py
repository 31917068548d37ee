"""The pieces of a folder that is imported: weights in one file or in shards, and JSON."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tformer_cli.errors import CheckpointError
from tformer_cli.export.settings import json_object
from tformer_cli.export.weights import StoredWeights, read_weights, weights_file

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(5), "c": torch.tensor([0.1])}
SHARDS = {"a": ONE, "b": TWO, "c": ONE}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three weights in two shards."""
    for shard in (ONE, TWO):
        names = [name for name, file in SHARDS.items() if file == shard]
        save_file({name: WEIGHTS[name] for name in names}, tmp_path / shard)
    write_index(tmp_path, {"weight_map": SHARDS})
    return tmp_path


def write_index(folder: Path, content: object) -> None:
    (folder / INDEX).write_text(json.dumps(content), encoding="utf-8")


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_weights(folder / INDEX)
    return str(caught.value)


def test_shards_hold_what_one_file_would(folder):
    assert weights_file(folder) == folder / INDEX
    found = read_weights(folder / INDEX).weights
    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


def test_one_file_comes_before_an_index(folder):
    save_file({"a": torch.zeros(7)}, folder / "model.safetensors")
    assert weights_file(folder) == folder / "model.safetensors"
    assert read_weights(weights_file(folder)).weights["a"].shape == (7,)


def test_a_folder_without_weights_lacks_the_one_file(tmp_path):
    assert weights_file(tmp_path) == tmp_path / "model.safetensors"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_are_read_in_single_precision(tmp_path, dtype):
    weight = torch.tensor([0.1, -3.0], dtype=dtype)
    save_file({"a": weight}, tmp_path / "model.safetensors")
    assert torch.equal(read_weights(tmp_path / "model.safetensors").weights["a"], weight.float())


def test_an_index_that_is_not_json_is_named(folder):
    (folder / INDEX).write_text("{")
    assert refused(folder).startswith(f"{folder}/{INDEX}: is not JSON (Expecting property")


def test_a_pipe_instead_of_json_is_refused_by_name(tmp_path):
    """Whoever reads it waits for ever."""
    os.mkfifo(tmp_path / "target_vocab.json")
    with pytest.raises(CheckpointError) as caught:
        json_object(tmp_path / "target_vocab.json")
    assert str(caught.value) == (
        f"{tmp_path}/target_vocab.json: is not JSON (no regular file); fetch the folder again"
    )


@pytest.mark.parametrize(
    "content", [{}, {"weight_map": [ONE]}, {"weight_map": {"a": 1}}, {"weight_map": {"a": None}}]
)
def test_an_index_without_a_map_is_named(folder, content):
    write_index(folder, content)
    assert refused(folder) == (
        f"{folder}/{INDEX}: has no weight_map that names the file of each weight; "
        "fetch the folder again"
    )


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/x.safetensors", "x/y.safetensors", "..", "", "\ud800.safetensors"],
)
def test_a_shard_outside_the_folder_is_refused(folder, name):
    write_index(folder, {"weight_map": SHARDS | {"b": name}})
    assert refused(folder) == (
        f"{folder}/{INDEX}: names no safetensors file of its folder "
        f"({name.encode('unicode_escape').decode()}); fetch the folder again"
    )


def test_a_shard_that_is_missing_is_named(folder):
    (folder / TWO).unlink()
    assert refused(folder) == f"{folder}/{TWO}: no such file; fetch the folder again"


def test_a_shard_that_is_cut_short_is_named(folder):
    (folder / TWO).write_bytes((folder / TWO).read_bytes()[:-3])
    message = refused(folder)
    assert message.startswith(f"{folder}/{TWO}: is damaged or cut short (")
    assert message.endswith("; fetch the folder again")


@pytest.mark.parametrize(
    ("shards", "shard", "name"),
    [
        (SHARDS | {"d": TWO}, TWO, "d"),
        ({"a": ONE, "b": TWO}, ONE, "c"),
        (SHARDS | {"c": TWO}, ONE, "c"),
    ],
    ids=["in no shard", "not in the index", "elsewhere"],
)
def test_a_weight_that_is_not_where_the_index_says_is_named(folder, shards, shard, name):
    write_index(folder, {"weight_map": shards})
    assert refused(folder) == (
        f"{folder}/{shard}: differs in 1 of its weights from what {INDEX} says ({name}); "
        "fetch the folder again"
    )


@pytest.mark.parametrize(
    ("found", "name"),
    [({"a": (2, 3)}, "b"), ({"a": (2, 3), "b": (4,)}, "b"), ({"a": (2,), "b": (5,)}, "a")],
)
def test_weights_that_are_not_those_of_the_settings_are_named(found, name):
    weights = {key: torch.zeros(shape) for key, shape in found.items()}
    stored = StoredWeights(Path("weights"), Path("config.json"), weights)
    with pytest.raises(CheckpointError) as caught:
        stored.check(weights, {"a": (2, 3), "b": (5,)})
    assert str(caught.value) == (
        "weights: differs in 1 of its weights from the model that config.json describes "
        f"({name}); fetch the folder again"
    )
    stored.check(weights, found)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, number):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2), "b": torch.tensor([1.0, number])}, file)
    with pytest.raises(CheckpointError) as caught:
        read_weights(file)
    assert str(caught.value) == (
        f"{file}: holds numbers that are not finite in 1 of its weights (b); fetch the folder again"
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_in_another_number_format_are_refused(tmp_path, dtype):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2), "b": torch.ones(2).to(dtype)}, file)
    with pytest.raises(CheckpointError) as caught:
        read_weights(file)
    assert str(caught.value) == (
        f"{file}: holds 1 of its weights in an unsupported dtype "
        f"({str(dtype)[6:]} for b); fetch the folder again"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON (Expecting property name"),
        (b"\xff", "is not JSON ('utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "is not JSON (nested too deeply)"),
        (b"3", "must be a JSON object (int)"),
    ],
)
def test_what_is_no_json_object_is_named(tmp_path, content, message):
    file = tmp_path / "vocab.json"
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        json_object(file)
    assert str(caught.value).startswith(f"{file}: {message}")
    assert str(caught.value).endswith("; fetch the folder again")
