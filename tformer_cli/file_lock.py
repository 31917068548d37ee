"""One process at a time at a file."""

import errno
import fcntl

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
