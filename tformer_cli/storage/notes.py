"""Notes in a file of tensors, which other programs leave alone."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.atomic import check_regular, parse_json
from tformer_cli.storage.integrity import ANOTHER_CHECKPOINT

# safetensors writes metadata entries in any order, so one entry holds all notes.
NOTES_KEY = "tformer"


def metadata_of(notes: Mapping[str, str]) -> dict[str, str]:
    """Return notes as file metadata, which `read_notes` reads back."""
    return {NOTES_KEY: json.dumps(notes, sort_keys=True)}


def read_notes(file: Path) -> dict[str, str]:
    """Return the notes in a file of tensors; none if another program wrote it."""
    with tensor_file_errors(file), safe_open(file, framework="np") as tensors:
        metadata = tensors.metadata() or {}
    try:
        notes = parse_json(metadata.get(NOTES_KEY, "{}"))
    except ValueError:
        return {}
    return {key: str(value) for key, value in notes.items()} if isinstance(notes, dict) else {}


@contextlib.contextmanager
def tensor_file_errors(file: Path) -> Iterator[None]:
    """Raise CheckpointError where a file of tensors cannot be read."""
    try:
        check_regular(file)
        yield
    except FileNotFoundError:
        raise CheckpointError(str(file), "no such file", remedy="name another checkpoint") from None
    except (SafetensorError, OSError, ValueError) as error:
        what = "is damaged or cut short"
        raise CheckpointError(str(file), what, got=str(error), remedy=ANOTHER_CHECKPOINT) from None
