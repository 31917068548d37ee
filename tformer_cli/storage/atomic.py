"""Atomic writes: files and folders that are whole or absent, whenever the machine stops.

What is written lies in a staging directory `.NAME.tformer-RANDOM` beside its target, in which the
writer keeps a file locked, until it is renamed to the target.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tformer_cli.errors import StorageError, UsageError
from tformer_cli.storage.lock import acquire, open_lock_file, try_lock

MARK = ".tformer-"
STAGED = re.compile(rf"\.(?P<name>.+){re.escape(MARK)}[a-z0-9_]{{8}}", flags=re.DOTALL)
# In a staging directory: the lock, the new content, and the old content while the two are swapped.
LOCK, NEW, OLD = "lock", "new", "old"


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise StorageError, with `path` and a remedy, where the system raises OSError."""
    try:
        yield
    except OSError as error:
        raise StorageError.of(error, str(path)) from error


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` on success and is removed on failure.

    A reader sees the old file or the new one, never a part. Of a symbolic link the target is
    replaced. A pipe or a device is written directly.
    """
    with storage_errors(path):
        if path.exists() and not path.is_file():
            yield path
            return
        path = Path(os.path.realpath(path))
        make_directory(path.parent)
        with _staging_directory(path) as directory:
            temporary = directory / NEW
            yield temporary
            _sync_file(temporary)
            temporary.replace(path)
            sync_directory(path.parent)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which replaces `path` on success and is removed on failure.

    Of a symbolic link the target is replaced. The swap takes two renames; after a kill between
    them, `recover_interrupted_writes` restores the old folder.
    """
    with _temporary_directory(path) as (path, temporary):
        yield temporary
        _sync_tree(temporary)
        if path.is_dir():
            path.rename(temporary.with_name(OLD))
        temporary.rename(path)
        sync_directory(path.parent)


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `path` on success and removed on failure.

    Nothing is ever replaced, neither what exists at the beginning nor what appears meanwhile.

    Raises:
        UsageError: something has the name.
    """
    check_absent(path)
    with _temporary_directory(path) as (path, temporary):
        yield temporary
        _sync_tree(temporary)
        # A rename replaces an empty folder, and no other.
        check_absent(path)
        try:
            temporary.rename(path)
        except OSError:
            check_absent(path)
            raise
        sync_directory(path.parent)


def check_absent(path: Path) -> None:
    """Refuse a path that exists, once leftovers of killed writers are removed."""
    recover_interrupted_write(path)
    if path.exists():
        raise UsageError(str(path), "already exists", remedy="remove it, or name another")


@contextlib.contextmanager
def _temporary_directory(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield `path` with links resolved, and a new folder in its staging directory."""
    with storage_errors(path):
        path = Path(os.path.realpath(path))
        make_directory(path.parent)
        with _staging_directory(path) as directory:
            temporary = directory / NEW
            temporary.mkdir()
            yield path, temporary


def recover_interrupted_writes(folder: Path) -> None:
    """Do what `recover_interrupted_write` does, of every path in a folder."""
    with storage_errors(folder):
        if folder.is_dir():
            for directory in folder.iterdir():
                if STAGED.fullmatch(directory.name):
                    _recover(directory)


def recover_interrupted_write(path: Path) -> None:
    """Remove what killed writers of `path` left, and restore what they were about to replace."""
    for directory in path.parent.glob(f".{glob.escape(path.name)}{MARK}*"):
        if STAGED.fullmatch(directory.name):
            _recover(directory)


def empty_directory(path: Path) -> None:
    """Remove a folder; a symbolic link to a folder stays, and the content of the folder goes."""
    if not path.is_dir():
        return
    with storage_errors(path):
        if not path.is_symlink():
            shutil.rmtree(path)
            return
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink()


def remove_directory(path: Path) -> None:
    """Remove a folder atomically, if it exists; a write-protected one stays."""
    if path.is_dir():
        with (
            storage_errors(path),
            contextlib.suppress(PermissionError),
            _staging_directory(path) as directory,
        ):
            path.rename(directory / OLD)


def make_directory(path: Path) -> None:
    """Create a folder and its parents, so that their names survive a power cut."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def read_json(file: Path) -> Any:
    """Return the value in a JSON file that anybody may have written.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not JSON, or is a pipe or a device, which may never end.
    """
    if file.exists() and not file.is_file():
        raise ValueError("no regular file")
    return parse_json(file.read_text(encoding="utf-8"))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_tree(folder: Path) -> None:
    for name, _, files in os.walk(folder):
        for file in files:
            _sync_file(Path(name, file))
        sync_directory(Path(name))


@contextlib.contextmanager
def _staging_directory(path: Path) -> Iterator[Path]:
    """Yield a locked directory beside `path`, removed at the end; remove leftovers first."""
    recover_interrupted_write(path)
    directory, descriptor = _locked_directory(path)
    try:
        try:
            yield directory
        finally:
            _remove(directory)
    finally:
        os.close(descriptor)


def _locked_directory(path: Path) -> tuple[Path, int]:
    """Create a staging directory and lock it; return it and the descriptor of its lock file."""
    while True:
        directory = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}{MARK}"))
        descriptor = None
        try:
            descriptor = open_lock_file(directory / LOCK)
            # Until it is locked, another writer may take it for a leftover and remove it.
            if acquire(descriptor) and (directory / LOCK).exists():
                return directory, descriptor
            os.close(descriptor)
        except FileNotFoundError:
            continue
        except BaseException:
            _remove(directory)
            if descriptor is not None:
                os.close(descriptor)
            raise


def _recover(directory: Path) -> None:
    """Remove a staging directory whose writer was killed, and restore the old content."""
    # What belongs to another user stays.
    with contextlib.suppress(OSError):
        try:
            descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            # Its writer was killed before there was a lock: the directory is empty.
            directory.rmdir()
            return
        try:
            was_killed = try_lock(descriptor)
            if was_killed:
                _remove(directory)
            elif was_killed is None:
                # Without locks nobody knows.
                _restore(directory)
        finally:
            os.close(descriptor)


def _remove(directory: Path) -> None:
    """Remove a staging directory; the lock goes last, so that a kill leaves a valid leftover."""
    with contextlib.suppress(OSError):
        _restore(directory)
        if (directory / OLD).exists() and (directory / NEW).exists():
            # Something else has taken the path of the old content, which is kept here.
            return
        for child in (directory / NEW, directory / OLD):
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink(missing_ok=True)
        (directory / LOCK).unlink(missing_ok=True)
        directory.rmdir()


def _restore(directory: Path) -> None:
    """Rename a folder back that was about to be replaced."""
    match = STAGED.fullmatch(directory.name)
    assert match is not None
    path, old = directory.with_name(match["name"]), directory / OLD
    if old.is_dir() and (directory / NEW).exists() and not os.path.lexists(path):
        old.rename(path)
