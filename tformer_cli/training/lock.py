"""One training at a time in a run folder."""

import contextlib
import os
from collections.abc import Iterator

from tformer_cli.errors import TrainingError
from tformer_cli.file_lock import take_lock
from tformer_cli.run_directory import RunDirectory, writing


@contextlib.contextmanager
def locked(run: RunDirectory) -> Iterator[None]:
    """Keep other processes from training in a run folder.

    The system takes the lock away when this process ends, however it ends; the file stays, with
    the number of the process that held the lock last.

    Raises:
        TrainingError: another process trains there.
        StorageError: the folder cannot be written.
    """
    with writing(run.lock_file):
        handle = os.open(run.lock_file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with writing(run.lock_file):
            _take(handle, run)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _take(handle: int, run: RunDirectory) -> None:
    if not take_lock(handle):
        holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
        raise TrainingError(
            str(run.path),
            "another process is training here",
            got=f"process {holder}" if holder else None,
            remedy="wait for it, or train elsewhere with --run",
        )
