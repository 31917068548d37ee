"""Tensors in safetensors files."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tformer_cli.errors import CheckpointError
from tformer_cli.json_text import parse_json

# The library writes several entries of metadata in any order, so one entry holds all notes.
NOTES = "tformer"

WEIGHT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def save_tensors(
    tensors: dict[str, Tensor], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors into a file.

    Args:
        tensors: by their names.
        file: is replaced.
        metadata: what the file says of itself besides; at most one entry, for equal bytes.

    Raises:
        OSError: the system does not let it be written.
    """
    file.touch()
    mode = file.stat().st_mode
    try:
        save_file(tensors, file, metadata)
        # The library replaces it by one that nobody but its owner may read.
        file.chmod(mode)
    except SafetensorError as error:
        # The library keeps the system's error as words alone: "... (os error 28)".
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(file)) from error


def metadata_of(notes: Mapping[str, str]) -> dict[str, str]:
    """Return notes as the metadata of a file of tensors, for `read_notes`."""
    return {NOTES: json.dumps(notes, sort_keys=True)}


def read_notes(file: Path) -> dict[str, str]:
    """Return the notes in a file of tensors; none where something else wrote the file.

    Raises:
        CheckpointError: it is missing, damaged or cut short.
    """
    with _reading(file), safe_open(file, framework="pt") as tensors:
        metadata = tensors.metadata() or {}
    try:
        notes = parse_json(metadata.get(NOTES, "{}"))
    except ValueError:
        return {}
    return {key: str(value) for key, value in notes.items()} if isinstance(notes, dict) else {}


def read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file with their names.

    Raises:
        CheckpointError: it is missing, damaged or cut short.
    """
    with _reading(file), safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            yield name, tensors.get_tensor(name)


def check_dtypes(file: Path, weights: Mapping[str, Tensor], remedy: str) -> None:
    """Refuse weights that are no floating-point numbers, or that torch does not compute with.

    Raises:
        CheckpointError: with the name of the first, and that remedy.
    """
    others = [name for name, weight in weights.items() if weight.dtype not in WEIGHT_DTYPES]
    if others:
        dtype = str(weights[min(others)].dtype).removeprefix("torch.")
        raise CheckpointError(
            str(file),
            f"holds weights in another number format ({len(others)} weights)",
            got=f"{dtype} for {min(others)}",
            remedy=remedy,
        )


def check_finite(file: Path, weights: Mapping[str, Tensor], remedy: str) -> None:
    """Refuse weights that are not finite, which translate nothing.

    Raises:
        CheckpointError: with the name of the first, and that remedy.
    """
    unusable = [name for name, weight in weights.items() if not torch.isfinite(weight).all()]
    if unusable:
        raise CheckpointError(
            str(file),
            f"holds numbers that are not finite ({len(unusable)} weights have some)",
            got=min(unusable),
            remedy=remedy,
        )


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Say of a file why it cannot be read.

    Raises:
        CheckpointError: it cannot.
    """
    remedy = "use another checkpoint"
    if file.exists() and not file.is_file():
        # A pipe or a device may never end.
        raise CheckpointError(
            str(file), "is damaged or cut short", got="no regular file", remedy=remedy
        )
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(str(file), "no such file", remedy="name another checkpoint") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            str(file), "is damaged or cut short", got=str(error), remedy=remedy
        ) from None
