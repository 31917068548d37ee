"""What a folder that is imported holds, weights and JSON, and the model that has the weights."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tformer_cli.config.schema.model import ModelConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.atomic import read_json
from tformer_cli.storage.run_directory import MODEL_FILE
from tformer_cli.storage.tensors import check_dtypes, check_finite, read_tensors

# As transformers names what says in which shard a weight is.
INDEX_FILE = f"{MODEL_FILE}.index.json"
# The name of a shard, which leads to no other folder.
SHARD = re.compile(r"[\w.-]+\.safetensors")

RESTORE = "fetch the folder again"


def weights_file(folder: Path) -> Path:
    """Return the file that holds the weights of a folder, or the index of those that do."""
    whole, index = folder / MODEL_FILE, folder / INDEX_FILE
    return index if index.is_file() and not whole.is_file() else whole


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return weights by their names, in single precision.

    Args:
        file: of safetensors, or the index of several.

    Raises:
        CheckpointError: a file is missing or damaged, or a shard is not what the index says.
    """
    if file.name != INDEX_FILE:
        return _read(file)
    weights: dict[str, Tensor] = {}
    for shard, names in _shards(file).items():
        found = _read(file.parent / shard)
        differing = found.keys() ^ names
        if differing:
            raise CheckpointError(
                str(file.parent / shard),
                f"holds other weights than {INDEX_FILE} says ({len(differing)} differ)",
                got=min(differing),
                remedy=RESTORE,
            )
        weights |= found
    return weights


def check_weights(
    file: Path,
    found: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
    settings: str,
) -> None:
    """Check that a file has the weights of a model and no others.

    Args:
        file: for messages.
        found: the shapes of its weights, by their names.
        expected: what they should be.
        settings: the file that says so.

    Raises:
        CheckpointError: they differ.
    """
    differing = {name for name, _ in expected.items() ^ found.items()}
    if differing:
        raise CheckpointError(
            str(file),
            f"holds another model than {settings} describes ({len(differing)} weights differ)",
            got=min(differing),
            remedy=RESTORE,
        )


def shapes(
    config: ModelConfig, *, source_size: int, target_size: int, num_weights: int, settings: Path
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of a model that is to have the weights of a folder.

    Args:
        config: its shape.
        source_size: size of the source vocabulary.
        target_size: size of the target vocabulary.
        num_weights: how many the folder has. Every layer has some, so a settings file that
            describes millions of layers is found out before they are built.
        settings: the file that the config is from, for messages.

    Raises:
        CheckpointError: there are more layers than weights, or more numbers than torch counts.
    """
    num_layers = sum(getattr(config, f"num_{x}layers", 0) for x in ("", "encoder_", "decoder_"))
    if num_layers > num_weights:
        raise CheckpointError(
            str(settings),
            f"describes more layers than the folder has weights ({num_weights})",
            got=str(num_layers),
            remedy=RESTORE,
        )
    with torch.device("meta"), _within_memory(settings):
        model = build_model(config, source_size=source_size, target_size=target_size, seed=0)
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def new_model(
    config: ModelConfig, *, source_size: int, target_size: int, settings: Path
) -> Seq2Seq:
    """Return a model that is to have the weights of a folder; arguments as of `shapes`.

    Raises:
        CheckpointError: memory does not suffice.
    """
    with _within_memory(settings):
        return build_model(config, source_size=source_size, target_size=target_size, seed=0)


@contextlib.contextmanager
def _within_memory(settings: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OverflowError, TypeError, MemoryError):
        # Which of them torch raises depends on how far beyond its numbers the size is.
        raise CheckpointError(
            str(settings), "describes a model that this machine cannot hold", remedy=RESTORE
        ) from None


def fill(model: Seq2Seq, weights: Mapping[str, Tensor], file: Path) -> None:
    """Give a model its weights, by our names; then it can translate.

    Args:
        model: what gets them.
        weights: by our names.
        file: that they are from, for messages.

    Raises:
        CheckpointError: some are not finite.
    """
    check_finite(file, weights, RESTORE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    model.eval()


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: it holds something else.
    """
    try:
        found = read_json(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(str(file), "is not JSON", got=str(error), remedy=RESTORE) from None
    if not isinstance(found, dict):
        got = type(found).__name__
        raise CheckpointError(str(file), "must be a JSON object", got=got, remedy=RESTORE)
    return found


def _shards(index: Path) -> dict[str, set[str]]:
    """Return the names of the weights that each shard should hold, by its name."""
    places = json_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise CheckpointError(
            str(index), "has no weight_map that names the file of each weight", remedy=RESTORE
        )
    shards: dict[str, set[str]] = {}
    for name, shard in places.items():
        if not SHARD.fullmatch(shard):
            raise CheckpointError(
                str(index), "names no safetensors file of its folder", got=shard, remedy=RESTORE
            )
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
    return {name: weight.float() for name, weight in weights.items()}
