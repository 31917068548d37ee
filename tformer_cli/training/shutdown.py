"""Graceful shutdown on SIGINT, SIGTERM and SIGHUP."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Self

from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import Interrupted

Handler = Callable[[int, FrameType | None], None]
ACKNOWLEDGEMENT = b"\nstopping after this step; Ctrl-C again leaves without saving\n"


class ShutdownRequested(Exception):
    """Ends work that is repeated later."""


class GracefulShutdown:
    """Catches the first SIGINT, SIGTERM or SIGHUP, so that work is saved before the process ends.

    A second Ctrl-C ends the program at once. A second SIGTERM does not: some programs send it to a
    process and to its group. SIGHUP (a closed terminal) stays ignored where it is, as by `nohup`.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, where: str, world: World = SINGLE_PROCESS) -> None:
        """Name the work `where` in messages, done by the processes of `world`."""
        self.where = where
        self.world = world
        # None if none came; the same in all processes after `poll`.
        self.signal: int | None = None
        self._received = 0
        self._handlers = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for number in self.SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._handlers.enter_context(_handled(number, self._receive))
        return self

    def __exit__(self, *error: object) -> None:
        self._handlers.close()

    def poll(self) -> None:
        """Set `signal` if one has come to any process."""
        self.signal = self.world.all_reduce_max(self._received) or None

    def interrupting(self, on_done: Callable[[int], object]) -> Callable[[int], None]:
        """Return a callback of work that is repeated later: `on_done`, and an end on a signal.

        It raises ShutdownRequested. Several processes finish the work all the same, as they wait
        for each other's results.
        """

        def call(count: int) -> None:
            on_done(count)
            if self._received and self.world.size == 1:
                raise ShutdownRequested

        return call

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received and number == signal.SIGINT:
            raise Interrupted(
                self.where,
                "interrupted again; left at once, without saving",
                signal=number,
                remedy="re-run the command to resume from the last checkpoint",
            )
        if not self._received and number == signal.SIGINT and self.world.is_main_process:
            # Not by sys.stderr, which may be in the middle of another line.
            with contextlib.suppress(OSError):
                os.write(2, ACKNOWLEDGEMENT)
        self._received = self._received or number


@contextlib.contextmanager
def sigterm_raised(where: str) -> Iterator[None]:
    """Raise an error on SIGTERM, as on Ctrl-C, so that temporary files are removed.

    A second SIGTERM does not interrupt the cleanup.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Interrupted(
            where,
            "was interrupted and left nothing behind",
            signal=number,
            remedy="re-run the command to start over",
        )

    with _handled(signal.SIGTERM, leave):
        yield


@contextlib.contextmanager
def _handled(number: int, handler: Handler) -> Iterator[None]:
    """Handle a signal; only in the main thread, as Python lets no other."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, former)
