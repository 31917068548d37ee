"""Threads that fetch what will be wanted next: lines of a pipe, batches of a training."""

import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


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


def ahead(items: Iterable[_Item], most: int) -> Generator[_Item]:
    """Yield items in their order, each made while the ones before it are in use.

    Whoever does not want all of them closes the generator.

    Args:
        items: made in a thread of their own; what it raises is raised here.
        most: how many may wait to be asked for.
    """
    made: queue.Queue[tuple[_Item] | BaseException | None] = queue.Queue()
    room = threading.Semaphore(most)
    is_over = threading.Event()

    def make() -> None:
        try:
            for item in items:
                room.acquire()
                if is_over.is_set():
                    return
                made.put((item,))
            made.put(None)
        except BaseException as error:
            made.put(error)

    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    try:
        while True:
            item = made.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item[0]
    finally:
        is_over.set()
        room.release()
        # A thread that the end of the program cuts off inside of torch takes the program down.
        maker.join()
