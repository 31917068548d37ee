"""One process at a time at a file."""

import contextlib
import errno
import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from tformer_cli.run_directory import writing

# A network file system may have no locks: there the user has to see to it.
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


def take_lock(handle: int) -> bool:
    """Return whether an open file is this process's own now, rather than another's.

    The system takes the lock away when the file is closed or this process ends, however it ends.

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
    return True


@contextlib.contextmanager
def alone(lock: Path, waiting: str) -> Iterator[None]:
    """Let one process at a time go on; the system lets go of the lock of one that is killed.

    Args:
        lock: a file for this alone, which stays.
        waiting: what a process that has to wait says of it on a terminal.

    Raises:
        StorageError: the file cannot be written or locked.
    """
    with writing(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("wb")
    with file:
        with writing(lock):
            if not take_lock(file.fileno()):
                is_silent = not sys.stderr.isatty()
                with tqdm(desc=waiting, bar_format="{desc}", disable=is_silent, leave=False):
                    fcntl.flock(file, fcntl.LOCK_EX)
        yield
