"""Whether the files of a checkpoint are as they were saved, by their checksums."""

from collections.abc import Collection
from pathlib import Path

from tformer_cli.errors import CheckpointError, NewerFormatError, Problem
from tformer_cli.storage.atomic import check_regular, file_checksum
from tformer_cli.storage.run_directory import (
    CHECKSUMS_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    RAW_MODEL_FILE,
    STATE_FILE,
)
from tformer_cli.storage.state import load_progress

# The files that a training resumes from, and those that inference needs.
RESUME_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)
INFERENCE_FILES = (MODEL_FILE, STATE_FILE)
RESTORE_CONFIG = "restore the config.yaml that the run was trained with"
ANOTHER_CHECKPOINT = "restore the file, or use another checkpoint"


def write_checksums(directory: Path) -> None:
    """Write the checksums of all files of a checkpoint."""
    files = sorted(directory.iterdir())
    content = "".join(f"{file_checksum(file)}  {file.name}\n" for file in files)
    (directory / CHECKSUMS_FILE).write_text(content, encoding="utf-8")


def verify_checksums(directory: Path, names: Collection[str] | None = None) -> Problem | None:
    """Return what is wrong with files of a checkpoint, or None if they are as they were saved.

    Without `names`, verify all files that a training resumes from.
    """
    where = str(directory)
    if not directory.is_dir():
        return Problem(where, "does not exist")
    try:
        checksums = _checksums(directory)
    except (OSError, ValueError):
        return Problem(where, f"is incomplete: {CHECKSUMS_FILE} is missing or damaged")
    if names is None:
        present = (file.name for file in directory.glob("*.safetensors"))
        names = sorted({*RESUME_FILES, *checksums, *present})
    for name in names:
        try:
            if file_checksum(directory / name) != checksums.get(name):
                return Problem(where, f"is damaged: {name} does not match its checksum")
        except FileNotFoundError:
            return Problem(where, f"is incomplete: {name} is missing")
        except (OSError, ValueError) as error:
            return Problem(where, f"is damaged: {name} cannot be read", got=str(error))
    try:
        # Its checksum may be right and its values invalid.
        if STATE_FILE in names:
            load_progress(directory)
    except NewerFormatError:
        # Not damaged: reading the state again raises an error that says to upgrade.
        return None
    except CheckpointError as error:
        return error.problems[0]
    return None


def _checksums(directory: Path) -> dict[str, str]:
    """Return the checksums of a checkpoint by file name."""
    file = directory / CHECKSUMS_FILE
    check_regular(file)
    lines = file.read_text(encoding="utf-8").splitlines()
    return {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}


def recorded_checksum(directory: Path, name: str) -> str:
    """Return the checksum of a file of a checkpoint, as it was saved."""
    checksums = _checksums(directory)
    if name not in checksums:
        what = f"is incomplete: {CHECKSUMS_FILE} is missing or damaged"
        raise CheckpointError(str(directory), what, remedy=ANOTHER_CHECKPOINT)
    return checksums[name]


def trained_weights(directory: Path) -> Path:
    """Return the file of the weights that training resumes with, of an intact checkpoint.

    If there is an average of them beside it, `model.safetensors` is that.
    """
    has_average = RAW_MODEL_FILE in _checksums(directory)
    return directory / (RAW_MODEL_FILE if has_average else MODEL_FILE)


def verify_trained_weights(directory: Path) -> Problem | None:
    """Return what is wrong with the state, or with the weights that training resumes with."""
    return verify_checksums(directory, [STATE_FILE]) or verify_checksums(
        directory, [trained_weights(directory).name]
    )
