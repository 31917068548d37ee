"""Ctrl-C and SIGTERM, turned from a blow into a request."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from tformer_cli.errors import Interrupted


class SignalCame(Exception):
    """Ends work that is done again later anyway."""


class Interruption:
    """Catches the first SIGINT or SIGTERM, so that the work can be saved before leaving.

    A Ctrl-C after that ends the program at once. Another SIGTERM does not: some programs send it
    to a process and again to its group.

    Attributes:
        signal: number of the signal that came, or None.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, where: str) -> None:
        """Listen for work called `where` in messages."""
        self.where = where
        self.signal: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        # Python lets only the main thread listen to signals.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in self.SIGNALS}
            for number in self.SIGNALS:
                signal.signal(number, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def leave_if_signalled(self, *progress: object) -> None:
        """Serve as a listener to the progress of work that may be left undone.

        Raises:
            SignalCame: a signal has come.
        """
        if self.signal is not None:
            raise SignalCame

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise Interrupted(
                self.where,
                "interrupted again; left at once, without saving",
                signal=number,
                remedy="the same command goes on from the last checkpoint",
            )
        self.signal = self.signal or number
