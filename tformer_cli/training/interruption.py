"""Ctrl-C and SIGTERM, turned from a blow into a request."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interruption:
    """Catches the first SIGINT or SIGTERM, so that the work can be saved before leaving.

    A second one ends the program at once, as if nobody were listening.

    Attributes:
        signal: number of the signal that came, or None.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
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
        self._restore()

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
