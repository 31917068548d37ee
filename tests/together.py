"""Processes that work together as torchrun's do, forked from this one: they have imported torch."""

import gc
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tformer_cli.errors import TformerError

SECONDS = 100


class Ended(NamedTuple):
    """How a process has ended: its exit code, and what it wrote to stderr."""

    code: int
    said: str


def together(size: int, deed: Callable[[int], object], folder: Path) -> list[Ended]:
    """Let each of some processes do something that it is told its rank for.

    Args:
        size: how many there are.
        deed: what they do.
        folder: for what they say.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    processes = []
    for rank in range(size):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if process == 0:
            # Garbage of this process may wait for threads that a fork does not have.
            gc.freeze()
            os.environ |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            _do(lambda rank=rank: deed(rank), folder / f"said-by-{rank}")
        processes.append(process)
    deadline = time.monotonic() + SECONDS
    codes = [_code(process, deadline) for process in processes]
    return [Ended(code, (folder / f"said-by-{i}").read_text()) for i, code in enumerate(codes)]


def _do(deed: Callable[[], object], log: Path) -> None:
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = sys.stderr = os.fdopen(handle, "w", buffering=1)
        deed()
        code = 0
    except TformerError as error:
        print(error)
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _code(process: int, deadline: float) -> int:
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return -signal.SIGKILL


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
