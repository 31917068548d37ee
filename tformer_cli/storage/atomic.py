"""Atomic writes: files and folders that are whole or absent, whenever the machine stops."""

import contextlib
import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tformer_cli.errors import StorageError, UsageError
from tformer_cli.storage.lock import acquire, open_lock_file, try_lock

# A staging directory is called .NAME.tformer-RANDOM. Its writer keeps a file in it locked.
MARK = ".tformer-"
STAGED = re.compile(rf"\.(?P<name>.+){re.escape(MARK)}[a-z0-9_]{{8}}", flags=re.DOTALL)
LOCK = "lock"
# What is being written, and what stood in its place before.
NEW, OLD = "new", "old"


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Let whatever the system refuses in the meantime be said of `path`.

    Raises:
        StorageError: the disk is full or broken, the folder has gone, permission is lacking.
    """
    try:
        yield
    except OSError as error:
        raise StorageError.of(error, str(path)) from error


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, else it goes.

    A reader sees the old file or the new one, never a part, whenever the machine stops. A link
    stays, and what it points at is replaced. A pipe or a device takes the bytes as they come.

    Raises:
        StorageError: the system does not let it be written.
    """
    with storage_errors(path):
        if path.exists() and not path.is_file():
            yield path
            return
        path = Path(os.path.realpath(path))
        make_directory(path.parent)
        with staging(path) as directory:
            temporary = directory / NEW
            yield temporary
            _sync_file(temporary)
            temporary.replace(path)
            sync_directory(path.parent)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it replaces `path`, else it goes.

    A link stays, and what it points at is replaced. Between two moves a kill leaves `path` without
    its name, which `recover_interrupted_writes` gives back to what was there.

    Raises:
        StorageError: the system does not let it be written.
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
    """Yield a temporary folder beside `path`; on success it is called `path`, else it goes.

    Nothing is replaced, neither what is there at the beginning nor what appears in the meantime.

    Raises:
        UsageError: something is there.
        StorageError: the system does not let it be written.
    """
    check_absent(path)
    with _temporary_directory(path) as (path, temporary):
        yield temporary
        _sync_tree(temporary)
        # The system replaces an empty folder, and no other.
        check_absent(path)
        try:
            temporary.rename(path)
        except OSError:
            check_absent(path)
            raise
        sync_directory(path.parent)


def check_absent(path: Path) -> None:
    """Refuse a name that something has already; what killed writers of it left goes.

    Raises:
        UsageError: something is there.
    """
    recover_interrupted_write(path)
    if path.exists():
        raise UsageError(str(path), "is there already", remedy="remove it, or name another")


@contextlib.contextmanager
def _temporary_directory(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield `path` without links, and a new folder in its staging directory."""
    with storage_errors(path):
        path = Path(os.path.realpath(path))
        make_directory(path.parent)
        with staging(path) as directory:
            temporary = directory / NEW
            temporary.mkdir()
            yield path, temporary


def recover_interrupted_writes(folder: Path) -> None:
    """Remove what killed writers left in a folder; what they were about to replace is there again.

    Raises:
        StorageError: the system does not let it be read.
    """
    with storage_errors(folder):
        if folder.is_dir():
            for directory in folder.iterdir():
                if STAGED.fullmatch(directory.name):
                    _sweep(directory)


def empty_directory(path: Path) -> None:
    """Remove a folder, if there is one; a link to a folder stays, and only what is in it goes.

    Raises:
        StorageError: something in it cannot be removed.
    """
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
    """Remove a folder, if there is one; under its own name it is never there in part.

    One that is write-protected stays.

    Raises:
        StorageError: the system does not let it be moved.
    """
    if path.is_dir():
        with storage_errors(path), contextlib.suppress(PermissionError), staging(path) as directory:
            path.rename(directory / OLD)


def make_directory(path: Path) -> None:
    """Create a folder and those around it, if there are none; their names survive a power cut.

    Raises:
        OSError: the system does not let one be created.
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file whole.

    Raises:
        StorageError: the system does not let it be written.
    """
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: object) -> None:
    """Write data for another program into a file, as a whole.

    Raises:
        StorageError: the system does not let it be written.
    """
    write_text(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(path: Path) -> None:
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _sync_tree(folder: Path) -> None:
    """Make a folder and all that is in it survive a power cut."""
    for name, _, files in os.walk(folder):
        for file in files:
            _sync_file(Path(name, file))
        sync_directory(Path(name))


@contextlib.contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Yield a directory beside `path` for this writer alone; it is removed at the end.

    What a killed writer of `path` left is removed first.

    Raises:
        OSError: the system does not let it be created.
    """
    recover_interrupted_write(path)
    directory, handle = _locked_directory(path)
    try:
        try:
            yield directory
        finally:
            _remove(directory)
    finally:
        os.close(handle)


def recover_interrupted_write(path: Path) -> None:
    """Remove what killed writers of `path` left, and restore what they were about to replace."""
    for directory in _staging_directories(path):
        _sweep(directory)


def _locked_directory(path: Path) -> tuple[Path, int]:
    """Create a staging directory and lock it; return it and the open lock file."""
    while True:
        directory = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}{MARK}"))
        handle = None
        try:
            handle = open_lock_file(directory / LOCK)
            # Until it is locked, another writer may take it for a leftover and remove it.
            if acquire(handle) and (directory / LOCK).exists():
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
