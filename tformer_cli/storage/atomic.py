"""Atomic writes: files and folders that are whole or absent, whenever the machine stops.

What is written lies in a staging directory `.NAME.tformer-RANDOM` beside its target, in which the
writer keeps a file locked, until it is renamed to the target.
"""

import contextlib
import glob
import gzip
import hashlib
import io
import json
import math
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
# The default of the program gzip.
GZIP_LEVEL = 6


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

    A reader sees the old file or the new one, never a part. The new one has the permissions of the
    old one. Of a symbolic link the target is replaced. A pipe or a device is written directly.
    """
    with storage_errors(path):
        if path.exists() and not path.is_file():
            yield path
            return
        with _staging(path) as (path, temporary):
            yield temporary
            if path.exists():
                # What was private stays so.
                shutil.copymode(path, temporary)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)


@contextlib.contextmanager
def open_atomic(path: Path) -> Iterator[io.BufferedIOBase]:
    """Yield a new file for bytes, which replaces `path` as `atomic_write` does; `.gz` is gzip.

    Equal content gives equal bytes: the header of gzip has neither a name nor a time.
    """
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0) as compressed:
            yield compressed


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which replaces `path` on success and is removed on failure.

    Of a symbolic link the target is replaced. The swap takes two renames; after a kill between
    them, `recover_interrupted_writes` restores the old folder.
    """
    with storage_errors(path), _staging(path) as (path, temporary):
        temporary.mkdir()
        yield temporary
        _sync_tree(temporary)
        if path.is_dir():
            path.rename(temporary.with_name(OLD))
        temporary.rename(path)
        sync(path.parent)


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `path` on success and removed on failure.

    Nothing is ever replaced, neither what exists at the beginning nor what appears meanwhile.
    """
    check_absent(path)
    with storage_errors(path), _staging(path) as (path, temporary):
        temporary.mkdir()
        yield temporary
        _sync_tree(temporary)
        # A rename replaces an empty folder, and no other.
        check_absent(path)
        try:
            temporary.rename(path)
        except OSError:
            check_absent(path)
            raise
        sync(path.parent)


def check_absent(path: Path) -> None:
    """Refuse a path that exists, once leftovers of killed writers are removed."""
    recover_interrupted_writes(path.parent, path.name)
    if path.exists():
        raise UsageError(str(path), "already exists", remedy="remove it, or name another")


def recover_interrupted_writes(folder: Path, name: str | None = None) -> None:
    """Remove what killed writers in a folder left, and restore what they were about to replace.

    With `name`, only those that wrote to that name.
    """
    pattern = "*" if name is None else glob.escape(name)
    with storage_errors(folder):
        for directory in folder.glob(f".{pattern}{MARK}*"):
            if STAGED.fullmatch(directory.name):
                _recover(directory)


def empty_directory(path: Path) -> None:
    """Remove a folder; a symbolic link to a folder stays, and the content of the folder goes."""
    if path.is_dir():
        with storage_errors(path):
            for removed in path.iterdir() if path.is_symlink() else [path]:
                _delete(removed)


def remove_directory(path: Path) -> None:
    """Remove a folder atomically, if it exists; a write-protected one stays."""
    if path.is_dir():
        with (
            storage_errors(path),
            contextlib.suppress(PermissionError),
            _staging(path) as (path, temporary),
        ):
            path.rename(temporary.with_name(OLD))


def make_directory(path: Path) -> None:
    """Create a folder and its parents, so that their names survive a power cut."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: object) -> None:
    """Write a JSON file in UTF-8 atomically; the names of files need not be UTF-8."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(json_bytes(content) + b"\n")


def json_bytes(content: object, *, indent: int | None = 2) -> bytes:
    """Return JSON in UTF-8; the names of files in it need not be UTF-8."""
    text = json.dumps(content, ensure_ascii=False, indent=indent, default=_plain_number)
    # A surrogate, which stands for another byte, is escaped as in JSON.
    return text.encode(errors="backslashreplace")


def _plain_number(value: object) -> object:
    """Return a number of numpy, which a caller may give, as one that JSON has."""
    import numpy as np

    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def read_json(file: Path) -> Any:
    """Return the value in a JSON file that anybody may have written, or raise ValueError."""
    check_regular(file)
    return parse_json(file.read_text(encoding="utf-8"))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, or raise ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_number(number: float) -> float | None:
    """Return a number; None for infinity and NaN, which JSON lacks."""
    return number if math.isfinite(number) else None


def check_regular(file: Path) -> None:
    """Raise ValueError if a file is a pipe or a device, which may never end."""
    if file.exists() and not file.is_file():
        raise ValueError("no regular file")


def file_checksum(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    check_regular(file)
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for name, _, files in os.walk(folder):
        for file in files:
            sync(Path(name, file))
        sync(Path(name))


@contextlib.contextmanager
def _staging(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield `path` with links resolved, and the path of its new content.

    That is in a locked staging directory, which is removed at the end.
    """
    path = Path(os.path.realpath(path))
    make_directory(path.parent)
    recover_interrupted_writes(path.parent, path.name)
    with contextlib.ExitStack() as stack:
        while True:
            directory = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}{MARK}"))
            try:
                descriptor = open_lock_file(directory / LOCK)
            except FileNotFoundError:
                continue
            except OSError:
                directory.rmdir()
                raise
            stack.callback(os.close, descriptor)
            stack.callback(_remove, directory)
            # Until it is locked, another writer may take it for a leftover and remove it.
            if acquire(descriptor) and (directory / LOCK).exists():
                break
        yield path, directory / NEW


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
        for name in (NEW, OLD, LOCK):
            _delete(directory / name)
        directory.rmdir()


def _restore(directory: Path) -> None:
    """Rename a folder back that was about to be replaced."""
    match = STAGED.fullmatch(directory.name)
    assert match is not None
    path, old = directory.with_name(match["name"]), directory / OLD
    if old.is_dir() and (directory / NEW).exists() and not os.path.lexists(path):
        old.rename(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
