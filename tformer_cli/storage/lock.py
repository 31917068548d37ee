"""One process at a time at a file."""

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from tformer_cli.errors import StorageError

# A network file system may have no locks: there the user has to see to it. Lustre without the
# mount option `flock` answers ENOSYS.
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def open_lock_file(path: Path) -> int:
    """Open a lock file for reading and writing, created if there is none; its content stays.

    Returns:
        The file descriptor.

    Raises:
        StorageError: it is a link, which could lead to any file, or a device.
        OSError: it cannot be opened.
    """
    refused = StorageError(str(path), "must be a regular file", remedy="remove it")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError:
        if path.is_symlink():
            raise refused from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise refused
    return handle


def try_lock(handle: int) -> bool | None:
    """Lock an open file without waiting.

    The system takes the lock away when the file is closed or this process ends, however it ends.

    Returns:
        Whether this process holds the lock now, or None if the file system has no locks.

    Raises:
        OSError: the file cannot be locked.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return None
    return True


def acquire(handle: int) -> bool:
    """Return whether no other process holds the lock of an open file; if so this one holds it now.

    Where the file system has no locks, nobody does.

    Raises:
        OSError: the file cannot be locked.
    """
    return try_lock(handle) is not False


@contextlib.contextmanager
def alone(lock: Path, waiting: str) -> Iterator[None]:
    """Let one process at a time go on; the system lets go of the lock of one that is killed.

    Args:
        lock: a file for this alone, which stays; its folder is there.
        waiting: what a process that has to wait says of it on a terminal.

    Raises:
        StorageError: the file cannot be written or locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            handle = open_lock_file(lock)
            stack.callback(os.close, handle)
            if not acquire(handle):
                is_silent = not sys.stderr.isatty()
                with tqdm(desc=waiting, bar_format="{desc}", disable=is_silent, leave=False):
                    fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise StorageError.of(error, str(lock)) from error
        yield
