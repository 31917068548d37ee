"""Lines as they arrive: few at once from a slow pipe, many from a fast one."""

import queue
import threading
from collections.abc import Iterable, Iterator


def arriving(lines: Iterable[str], most: int) -> Iterator[list[str]]:
    """Yield the lines that are there by now, at least one and at most `most`, in their order.

    Somebody who types a line and waits gets it at once; a fast writer fills large batches.

    Args:
        lines: read in a thread of its own, `most` ahead; what it raises is raised here.
        most: longest list.
    """
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=most)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        there: list[str] = []
        item = waiting.get()
        while isinstance(item, str):
            there.append(item)
            if len(there) == most or waiting.empty():
                break
            item = waiting.get()
        if there:
            yield there
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return
