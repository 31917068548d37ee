"""Configs and the demo text that come with an installed package."""

import shutil
from pathlib import Path

from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import atomic_write

_SHIPPED = Path(__file__).parents[1] / "shipped"
_FOLDERS = ("configs", "data/demo")


def write_shipped(folder: Path) -> dict[str, int]:
    """Copy the configs and the demo text into a folder; a file that already exists stays.

    Args:
        folder: it gets configs/ and data/demo/, so paths in the configs lead to the text.

    Returns:
        The number of files in each of the two.

    Raises:
        UsageError: a file already exists with other content; then nothing is written.
        StorageError: the system does not let a file be written.
    """
    files = {name: sorted((_SHIPPED / name).iterdir()) for name in _FOLDERS}
    missing = []
    for name in _FOLDERS:
        for file in files[name]:
            copy = folder / name / file.name
            if not copy.exists():
                missing.append((file, copy))
            elif not copy.is_file() or copy.read_bytes() != file.read_bytes():
                raise UsageError(
                    str(copy), "already exists, and is another file", remedy="name another folder"
                )
    for file, copy in missing:
        with atomic_write(copy) as temporary:
            shutil.copyfile(file, temporary)
    return {name: len(found) for name, found in files.items()}
