"""SIGTERM, turned from a blow into an error, so that what is temporary goes."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from tformer_cli.errors import Interrupted


@contextlib.contextmanager
def clearing_up(where: str) -> Iterator[None]:
    """Let SIGTERM be an error in the meantime, as Ctrl-C is one anyway.

    Another SIGTERM does not disturb the clearing up: some programs send it to a process and again
    to its group.

    Args:
        where: what a message calls the work.

    Raises:
        Interrupted: SIGTERM came.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Interrupted(
            where,
            "the rehearsal was interrupted; nothing is left of it",
            signal=number,
            remedy="the same command begins it again",
        )

    # Python lets only the main thread listen to signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
