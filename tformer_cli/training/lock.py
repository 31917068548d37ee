"""One training at a time in a run folder, and none in a folder of somebody else."""

import contextlib
import os
from collections.abc import Iterator

from tformer_cli.errors import TrainingError, UsageError
from tformer_cli.storage.atomic import storage_errors
from tformer_cli.storage.lock import acquire, open_lock_file
from tformer_cli.storage.run_directory import RunDirectory


def check_ours(run: RunDirectory) -> None:
    """Make sure that a folder that is to be a run is one already, or empty but for hidden files.

    Raises:
        UsageError: it holds something else.
    """
    signs = [run.lock_file, run.log_file, run.origin_file, *run.pointers]
    if any(sign.exists() for sign in signs):
        return
    if not run.path.is_dir():
        return
    if theirs := sorted(path.name for path in run.path.iterdir() if path.name[0] != "."):
        raise UsageError(
            str(run.path),
            "is not empty and not a run folder",
            got=f"{theirs[0]} in it",
            remedy="name another folder with `run`",
        )


@contextlib.contextmanager
def locked(run: RunDirectory) -> Iterator[None]:
    """Keep other processes from training in a run folder.

    The system takes the lock away when this process ends, however it ends; the file stays, with
    the number of the process that held the lock last.

    Raises:
        TrainingError: another process trains there.
        StorageError: the folder cannot be written.
    """
    with storage_errors(run.lock_file):
        handle = open_lock_file(run.lock_file)
    try:
        with storage_errors(run.lock_file):
            _take(handle, run)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _take(handle: int, run: RunDirectory) -> None:
    if not acquire(handle):
        holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
        raise TrainingError(
            str(run.path),
            "another process is training here",
            got=f"process {holder}" if holder else None,
            remedy="wait for it, or train elsewhere with `run`",
        )
