"""Whether a checkpoint is still what was saved."""

import hashlib
from collections.abc import Collection
from pathlib import Path

from tformer_cli.errors import CheckpointError, NewerFormatError, Problem
from tformer_cli.storage.run_directory import (
    CHECKSUMS_FILE,
    INFERENCE_FILES,
    RESUME_FILES,
    STATE_FILE,
)
from tformer_cli.storage.state import load_state


def write_checksums(directory: Path) -> None:
    """Write down what every file of a checkpoint is; the last thing to do to it."""
    files = sorted(directory.iterdir())
    content = "".join(f"{_sha256(file)}  {file.name}\n" for file in files)
    (directory / CHECKSUMS_FILE).write_text(content, encoding="utf-8")


def verify_checksums(directory: Path, names: Collection[str] | None = None) -> Problem | None:
    """Return what is wrong with a checkpoint, or None if it is as it was saved.

    Args:
        directory: the checkpoint.
        names: the files that matter, or None for all that a training goes on from.
    """
    where = str(directory)
    if not directory.is_dir():
        return Problem(where, "is not there")
    sums_file = directory / CHECKSUMS_FILE
    try:
        lines = sums_file.read_text(encoding="utf-8").splitlines() if sums_file.is_file() else None
    except (OSError, ValueError):
        lines = None
    if lines is None:
        return Problem(where, f"is not whole: {CHECKSUMS_FILE} is missing or damaged")
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    if names is None:
        there = (file.name for file in directory.glob("*.safetensors"))
        names = sorted({*RESUME_FILES, *sums, *there})
    for name in names:
        try:
            if _sha256(directory / name) != sums.get(name):
                return Problem(where, f"is damaged: {name} is not what was saved")
        except FileNotFoundError:
            return Problem(where, f"is not whole: {name} is missing")
        except (OSError, ValueError) as error:
            return Problem(where, f"is damaged: {name} cannot be read", got=str(error))
    return _impossible_state(directory) if STATE_FILE in names else None


def _impossible_state(directory: Path) -> Problem | None:
    """Return what is wrong with the values of a state, whose checksum is right."""
    try:
        load_state(directory)
    except NewerFormatError:
        # Not damaged: whoever needs the state is told to upgrade.
        return None
    except CheckpointError as error:
        return error.problems[0]
    return None


def check_intact(directory: Path, remedy: str) -> None:
    """Refuse a checkpoint that does not hold the weights that were saved.

    Raises:
        CheckpointError: with that remedy.
    """
    problem = verify_checksums(directory, INFERENCE_FILES)
    if problem is not None:
        where, what = problem.where, problem.what
        raise CheckpointError(where, what, got=problem.got, remedy=remedy)


def _sha256(file: Path) -> str:
    if file.exists() and not file.is_file():
        # A pipe or a device may never end.
        raise ValueError("no regular file")
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
