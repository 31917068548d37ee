"""The staging directory beside a file or folder, in which that is written until it is whole."""

import contextlib
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tformer_cli.storage.lock import open_lock, take_lock, try_lock

# A staging directory is called .NAME.tformer-RANDOM. Its writer keeps a file in it locked.
MARK = ".tformer-"
STAGED = re.compile(rf"\.(?P<name>.+){re.escape(MARK)}[a-z0-9_]{{8}}", flags=re.DOTALL)
LOCK = "lock"
# What is being written, and what stood in its place before.
NEW, OLD = "new", "old"


@contextlib.contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Yield a directory beside `path` for this writer alone; it is removed at the end.

    What a killed writer of `path` left is removed first.

    Raises:
        OSError: the system does not let it be created.
    """
    sweep(path)
    directory, handle = _locked_directory(path)
    try:
        try:
            yield directory
        finally:
            _remove(directory)
    finally:
        os.close(handle)


def sweep(path: Path) -> None:
    """Remove what killed writers of `path` left; what they were about to replace is there again."""
    for directory in _staging_directories(path):
        _sweep(directory)


def sweep_folder(folder: Path) -> None:
    """Do as `sweep` does for all that was being written in a folder."""
    if folder.is_dir():
        for directory in folder.iterdir():
            if STAGED.fullmatch(directory.name):
                _sweep(directory)


def _locked_directory(path: Path) -> tuple[Path, int]:
    """Create a staging directory and lock it; return it and the open lock file."""
    while True:
        directory = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}{MARK}"))
        handle = None
        try:
            handle = open_lock(directory / LOCK)
            # Until it is locked, another writer may take it for a leftover and remove it.
            if take_lock(handle) and (directory / LOCK).exists():
                return directory, handle
            os.close(handle)
        except FileNotFoundError:
            continue
        except BaseException:
            _remove(directory)
            if handle is not None:
                os.close(handle)
            raise


def _staging_directories(path: Path) -> list[Path]:
    found = path.parent.glob(f".{glob.escape(path.name)}{MARK}*")
    return [directory for directory in found if STAGED.fullmatch(directory.name)]


@contextlib.contextmanager
def _taken(directory: Path) -> Iterator[bool | None]:
    """Yield whether the writer of a staging directory has ended; None if nobody can know."""
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        yield try_lock(handle)
    finally:
        os.close(handle)


def _sweep(directory: Path) -> None:
    # What belongs to somebody else stays.
    with contextlib.suppress(OSError):
        try:
            with _taken(directory) as is_own:
                if is_own:
                    _remove(directory)
                elif is_own is None:
                    _put_back(directory)
        except FileNotFoundError:
            # Killed before there was a lock: nothing is in it.
            directory.rmdir()


def _remove(directory: Path) -> None:
    """Remove a staging directory; the lock goes last, so that a kill leaves what can be swept."""
    with contextlib.suppress(OSError):
        _put_back(directory)
        if (directory / OLD).exists() and (directory / NEW).exists():
            # Something else has the name of what was to be replaced: that stays here.
            return
        for child in (directory / NEW, directory / OLD):
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink(missing_ok=True)
        (directory / LOCK).unlink(missing_ok=True)
        directory.rmdir()


def _put_back(directory: Path) -> None:
    """Give back its name to a folder that was about to be replaced, and was not."""
    match = STAGED.fullmatch(directory.name)
    assert match is not None
    path, old = directory.with_name(match["name"]), directory / OLD
    if old.is_dir() and (directory / NEW).exists() and not os.path.lexists(path):
        old.rename(path)
