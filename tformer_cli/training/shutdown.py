"""SIGINT, SIGTERM and SIGHUP, turned from a blow into a request."""

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import Interrupted

ACKNOWLEDGEMENT = b"\nstopping after this step; Ctrl-C again leaves without saving\n"


class ShutdownRequested(Exception):
    """Ends work that is done again later anyway."""


class GracefulShutdown:
    """Catches the first SIGINT, SIGTERM or SIGHUP, so that the work can be saved before leaving.

    SIGHUP comes when a terminal or an ssh session is closed. A Ctrl-C after the first signal ends
    the program at once. Another SIGTERM does not: some programs send it to a process and again to
    its group. SIGHUP stays ignored where it is, as by `nohup`.

    Attributes:
        signal: number of the signal that came, or None. Where several processes work together, one
            that came to any of them, and known to all of them after the same step.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, where: str, world: World = SINGLE_PROCESS) -> None:
        """Listen for work called `where` in messages, that these processes do."""
        self.where = where
        self.world = world
        self.signal: int | None = None
        self._came = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        # Python lets only the main thread listen to signals.
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._take)
                for number in self.SIGNALS
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def raise_if_requested(self, *progress: object) -> None:
        """Serve as a listener to the progress of work that may be left undone.

        Several processes finish it all the same, for they wait for each other's results.

        Raises:
            ShutdownRequested: a signal has come.
        """
        if self._came and self.world.size == 1:
            raise ShutdownRequested

    def poll(self) -> None:
        """Learn whether a signal has come by now."""
        self.signal = self.world.all_reduce_max(self._came) or None

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._came and number == signal.SIGINT:
            raise Interrupted(
                self.where,
                "interrupted again; left at once, without saving",
                signal=number,
                remedy="the same command goes on from the last checkpoint",
            )
        if not self._came and number == signal.SIGINT and self.world.is_main_process:
            # Not by sys.stderr, which may be in the middle of another line.
            with contextlib.suppress(OSError):
                os.write(2, ACKNOWLEDGEMENT)
        self._came = self._came or number
