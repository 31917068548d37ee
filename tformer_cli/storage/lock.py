"""Exclusive file locks, which the system releases when their process ends, however it ends."""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from tformer_cli.errors import StorageError
from tformer_cli.terminal import is_terminal

# Some network file systems have no locks: nothing is locked there. Lustre without the mount option
# `flock` answers ENOSYS.
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
CLEAR_LINE = "\r\x1b[K"


def open_lock_file(path: Path) -> int:
    """Return the descriptor of a lock file, created if absent; its content stays.

    A symbolic link, which could lead to any file, and a device are refused.
    """
    refused = StorageError(str(path), "must be a regular file", remedy="remove it")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError:
        if path.is_symlink():
            raise refused from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refused
    return descriptor


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file if it is free; return whether it was, None in a system without locks."""
    # Imported late: `tformer --help` takes no lock.
    from filelock import lock_descriptor

    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return None


def acquire(descriptor: int) -> bool:
    """Lock an open file; return False if another process holds the lock."""
    return try_lock(descriptor) is not False


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[tuple[int, bool]]:
    """Open a file, created if absent; yield its descriptor, and whether its lock was free."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = open_lock_file(path)
            stack.callback(os.close, descriptor)
            was_free = acquire(descriptor)
        except OSError as error:
            raise StorageError.of(error, str(path)) from error
        yield descriptor, was_free


@contextlib.contextmanager
def exclusive_lock(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock of a file, which stays; while waiting for it, a terminal shows `waiting`."""
    from filelock import lock_descriptor

    with lock_file(path) as (descriptor, was_free):
        if not was_free:
            before, after = (waiting, CLEAR_LINE) if is_terminal(sys.stderr) else ("", "")
            print(before, end="", file=sys.stderr, flush=True)
            lock_descriptor(descriptor)
            print(after, end="", file=sys.stderr, flush=True)
        yield
