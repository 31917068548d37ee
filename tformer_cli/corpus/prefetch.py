"""Streams in chunks or delayed, and prefetching of streams in a thread."""

import itertools
import queue
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_Item = TypeVar("_Item")


def chunks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield lists of `size` items, the last one shorter (itertools.batched of Python 3.12)."""
    remaining = iter(items)
    while chunk := list(itertools.islice(remaining, size)):
        yield chunk


def available_lines(lines: Iterable[str], max_lines: int) -> Iterator[list[str]]:
    """Yield lists of the lines that have arrived: at least one, at most `max_lines`.

    A line typed into a terminal is yielded at once; a fast writer fills large lists. The lines are
    read in a thread, up to `max_lines` in advance. An error of the reader is raised here, after
    the lines before it.
    """
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=max_lines)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        available: list[str] = []
        item = arrived.get()
        while isinstance(item, str):
            available.append(item)
            if len(available) == max_lines or arrived.empty():
                break
            item = arrived.get()
        if available:
            yield available
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return


def prefetch(items: Iterable[_Item], buffer_size: int) -> Generator[_Item]:
    """Yield items in order, up to `buffer_size` of them waiting, and the next one being produced.

    They are produced in a thread. A consumer that stops early closes the generator. An error of the
    producer is raised here.
    """
    remaining = iter(items)
    end: Any = object()
    producer = ThreadPoolExecutor(1)
    produced = (producer.submit(next, remaining, end) for _ in itertools.count())
    try:
        for future in delayed(produced, buffer_size + 1):
            if (item := future.result()) is end:
                return
            yield item
    finally:
        # A thread that is killed inside torch when the program exits takes the program down.
        producer.shutdown(cancel_futures=True)


def delayed(items: Iterable[_Item], count: int) -> Iterator[_Item]:
    """Yield items in order, each when `count` more have been made: futures, while others run."""
    made: deque[_Item] = deque()
    for item in items:
        made.append(item)
        if len(made) > count:
            yield made.popleft()
    while made:
        yield made.popleft()
