"""Weights and JSON of a folder as transformers saves it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.atomic import read_json
from tformer_cli.storage.checkpoint import check_dtypes, check_finite, read_tensors
from tformer_cli.storage.run_directory import MODEL_FILE

# transformers' index of weights in several files (shards).
INDEX_FILE = f"{MODEL_FILE}.index.json"
# Names no file in another folder.
SHARD = re.compile(r"[\w.-]+\.safetensors")

RESTORE = "fetch the folder again"


def weights_file(folder: Path) -> Path:
    """Return the weights file of a folder, or the index of its shards."""
    whole, index = folder / MODEL_FILE, folder / INDEX_FILE
    return index if index.is_file() and not whole.is_file() else whole


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the finite weights of a file, or of the shards of an index, in float32."""
    if file.name != INDEX_FILE:
        return _read(file)
    weights: dict[str, Tensor] = {}
    for shard, names in _shards(file).items():
        part = _read(file.parent / shard)
        if differing := part.keys() ^ names:
            what = f"differs in {len(differing)} of its weights from what {INDEX_FILE} says"
            path = str(file.parent / shard)
            raise CheckpointError(path, what, got=min(differing), remedy=RESTORE)
        weights |= part
    return weights


def check_weights(
    file: Path,
    actual: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
    settings: str,
) -> None:
    """Check the names and shapes of the weights in a file that `settings` describes."""
    if differing := {name for name, _ in expected.items() ^ actual.items()}:
        what = (
            f"differs in {len(differing)} of its weights from the model that {settings} describes"
        )
        raise CheckpointError(str(file), what, got=min(differing), remedy=RESTORE)


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(str(file), "is not JSON", got=str(error), remedy=RESTORE) from None
    if not isinstance(content, dict):
        got = type(content).__name__
        raise CheckpointError(str(file), "must be a JSON object", got=got, remedy=RESTORE)
    return content


def _shards(index: Path) -> dict[str, set[str]]:
    """Return the weight names of each shard."""
    weight_map = json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(x, str) for x in weight_map.values()):
        what = "has no weight_map that names the file of each weight"
        raise CheckpointError(str(index), what, remedy=RESTORE)
    shards: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        if not SHARD.fullmatch(shard):
            what = "names no safetensors file of its folder"
            raise CheckpointError(str(index), what, got=shard, remedy=RESTORE)
        shards.setdefault(shard, set()).add(name)
    return shards


def _read(file: Path) -> dict[str, Tensor]:
    try:
        weights = dict(read_tensors(file))
    except CheckpointError as error:
        (problem,) = error.problems
        where, what = problem.where, problem.what
        raise CheckpointError(where, what, got=problem.got, remedy=RESTORE) from None
    check_dtypes(file, weights, RESTORE)
    check_finite(file, weights, RESTORE)
    return {name: weight.float() for name, weight in weights.items()}
