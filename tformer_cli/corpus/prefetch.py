"""Streams in chunks or delayed, and the work on them in a thread or in processes."""

import contextlib
import itertools
import multiprocessing
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import ModuleType
from typing import Any, TypeVar

from tformer_cli.errors import DeviceError
from tformer_cli.process import begin_child

# Jobs queued for each process, so that none waits for the reader.
QUEUED_JOBS = 2

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


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


def map_in_processes(
    function: Callable[[_Item], _Result], jobs: Iterable[_Item], num_processes: int
) -> Iterator[_Result]:
    """Yield the results of a function for jobs in order; a single process is this one.

    Function and jobs are none of the main module, which the processes do not import.

    Raises:
        DeviceError: a process was killed.
    """
    if num_processes == 1:
        yield from map(function, jobs)
        return
    # A fork would copy threads of torch and of the tokenizers in the middle of their work.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, initializer=begin_child) as pool:

        def submit(job: _Item) -> Future[_Result]:
            with _hidden_main_module():
                return pool.submit(function, job)

        try:
            submitted = map(submit, jobs)
            for future in delayed(submitted, QUEUED_JOBS * num_processes):
                yield future.result()
        except BrokenProcessPool:
            what = "was killed, probably out of memory"
            remedy = "free memory and run the same command again: it resumes from there"
            raise DeviceError("a worker process", what, remedy=remedy) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def _hidden_main_module() -> Iterator[None]:
    """Let a process that is started import no main module: a script would run again in it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
