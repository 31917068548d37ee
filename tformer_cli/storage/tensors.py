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
from tformer_cli.model.blocks.feedforward import current_weight_name
from tformer_cli.storage.atomic import parse_json

# safetensors writes metadata entries in any order, so one entry holds all notes.
NOTES = "tformer"
WEIGHT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ANOTHER_CHECKPOINT = "use another checkpoint"


def save_tensors(
    tensors: dict[str, Tensor], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors by name; with at most one entry of metadata, equal content gives equal bytes.

    Raises:
        OSError: the system refuses to write.
    """
    file.touch()
    mode = file.stat().st_mode
    try:
        save_file(tensors, file, metadata)
        # safetensors replaces the file by one that only its owner may read.
        file.chmod(mode)
    except SafetensorError as error:
        # safetensors turns the system's error into words: "... (os error 28)".
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1])), str(file)) from error


def metadata_of(notes: Mapping[str, str]) -> dict[str, str]:
    """Return notes as file metadata, which `read_notes` reads back."""
    return {NOTES: json.dumps(notes, sort_keys=True)}


def read_notes(file: Path) -> dict[str, str]:
    """Return the notes in a file; none if another program wrote it."""
    with _reading(file), safe_open(file, framework="pt") as tensors:
        metadata = tensors.metadata() or {}
    try:
        notes = parse_json(metadata.get(NOTES, "{}"))
    except ValueError:
        return {}
    return {key: str(value) for key, value in notes.items()} if isinstance(notes, dict) else {}


def read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file by name.

    Raises:
        CheckpointError: the file is missing, damaged or cut short.
    """
    with _reading(file), safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            yield current_weight_name(name), tensors.get_tensor(name)


def check_dtypes(file: Path, weights: Mapping[str, Tensor], remedy: str) -> None:
    """Refuse weights that are not floating-point numbers of a width that torch computes with."""
    others = [name for name, weight in weights.items() if weight.dtype not in WEIGHT_DTYPES]
    if others:
        dtype = str(weights[min(others)].dtype).removeprefix("torch.")
        raise CheckpointError(
            str(file),
            f"holds weights of an unsupported dtype ({len(others)} weights)",
            got=f"{dtype} for {min(others)}",
            remedy=remedy,
        )


def check_finite(file: Path, weights: Mapping[str, Tensor], remedy: str) -> None:
    """Refuse weights with an infinity or NaN."""
    others = [name for name, weight in weights.items() if not torch.isfinite(weight).all()]
    if others:
        raise CheckpointError(
            str(file),
            f"holds numbers that are not finite ({len(others)} weights have some)",
            got=min(others),
            remedy=remedy,
        )


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Raise CheckpointError where the file cannot be read."""
    what = "is damaged or cut short"
    if file.exists() and not file.is_file():
        # A pipe or a device may never end.
        raise CheckpointError(str(file), what, got="no regular file", remedy=ANOTHER_CHECKPOINT)
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(str(file), "no such file", remedy="name another checkpoint") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(str(file), what, got=str(error), remedy=ANOTHER_CHECKPOINT) from None
