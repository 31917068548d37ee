"""An engine of several processes: on a CPU one thread a sentence is faster than all on each."""

import contextlib
import gc
import multiprocessing
import os
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.errors import DeviceError, Problem, UsageError
from tformer_cli.process import begin_child, num_cores
from tformer_cli.search.engine import Engine, empty_translations, longest_first
from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.search.scoring import Scorer

# Between two reports of how much is done; to hear one takes time from those who work.
TOLD_SECONDS = 0.1


# More have no core to run on.
MAX_WORKERS_A_CORE = 4


class WorkersEngine:
    """Deals sentences out to processes, each with a thread and the same weights in memory.

    They begin when there is a sentence for them. Where a fault or Ctrl-C breaks a call off, they
    end with it, because what they still have to say would answer the next call. That one begins
    others. For the same reason one thread waits until another has its answer, and a process that
    is forked from this one begins its own.

    Attributes:
        engine: translates in each of them.
        processes: those that have begun; they end when nobody holds the engine any more.
    """

    def __init__(self, engine: Engine, num_workers: int) -> None:
        """Make ready for the processes.

        Args:
            engine: translates in each of them; its weights are shared, not copied.
            num_workers: how many there are at most.

        Raises:
            UsageError: this system cannot share weights with processes, or there are far more of
                them than cores.
        """
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UsageError(
                "`workers`", "needs a system that can fork", got=str(num_workers), remedy="use 1"
            )
        limit = MAX_WORKERS_A_CORE * num_cores()
        if num_workers > limit:
            raise UsageError(
                "`workers`",
                f"must be at most {limit} ({MAX_WORKERS_A_CORE} for each core)",
                got=str(num_workers),
                remedy="use one for each core, or fewer",
            )
        self.engine = engine
        self._num_workers = num_workers
        self._turn = threading.Lock()
        self._own()
        self._has_warned = False

    def _own(self) -> None:
        """Begin without processes, those that another process has begun left to it."""
        self._connections: list[Connection] = []
        self.processes: list[ForkProcess] = []
        self._owner = os.getpid()
        # No end of a pipe tells them, for those that were begun later hold a copy of it.
        weakref.finalize(self, _terminate, self.processes, self._owner)

    def _begin(self, num_processes: int) -> None:
        """Let there be so many processes, or more if there are already."""
        if len(self.processes) >= num_processes:
            return
        context = multiprocessing.get_context("fork")
        with _objects_left_alone():
            while len(self.processes) < num_processes:
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(self.engine, theirs), daemon=True)
                with warnings.catch_warnings():
                    # Python warns of threads that hold locks; the child takes up none of theirs.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                # So that its end is seen here.
                theirs.close()
                self._connections.append(ours)
                self.processes.append(process)

    def _end(self) -> None:
        self._connections.clear()
        _terminate(self.processes, self._owner)
        self.processes.clear()

    @property
    def scorer(self) -> Scorer:
        """Says how probable given translations are, in this process."""
        return self.engine.scorer

    def translate(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        *,
        nbest: int = 1,
        scored: bool = True,
        on_done: Callable[[int], object] = lambda count: None,
        on_warning: Callable[[Problem], object] = lambda problem: None,
    ) -> list[list[Hypothesis]]:
        """Return translations, as `Engine` says; several threads that call take turns.

        Raises:
            DeviceError: a process has ended, as the system does to one that wants too much memory;
                or memory does not suffice for a single request.
        """
        with self._turn:
            return self._translated(requests, config, nbest, scored, on_done, on_warning)

    def _translated(
        self,
        requests: Sequence[Request],
        config: DecodingConfig,
        nbest: int,
        scored: bool,
        on_done: Callable[[int], object],
        on_warning: Callable[[Problem], object],
    ) -> list[list[Hypothesis]]:
        if self._owner != os.getpid():
            self._own()
        order = longest_first(requests)
        self._begin(min(self._num_workers, len(order)))
        on_done(len(requests) - len(order))
        results: list[list[Hypothesis]] = [empty_translations(config, nbest) for _ in requests]
        # Dealt like cards, so that all have as many long ones.
        shares = {
            connection: order[place :: len(self._connections)]
            for place, connection in enumerate(self._connections[: len(order)])
        }
        try:
            for connection, share in shares.items():
                with _other_end():
                    connection.send(([requests[number] for number in share], config, nbest, scored))
            while shares:
                ready = wait(list(shares))
                for connection in [one for one in shares if one in ready]:
                    with _other_end():
                        message = connection.recv()
                    match message:
                        case int(count):
                            on_done(count)
                        case Problem() as warning:
                            # What one process is short of, the others are too.
                            if not self._has_warned:
                                on_warning(warning)
                            self._has_warned = True
                        case (Problem(where, what, got, remedy),):
                            raise DeviceError(where, what, got=got, remedy=remedy)
                        case str(fault):
                            raise RuntimeError(f"in a process that translates:\n{fault}")
                        case found:
                            share = shares.pop(connection)
                            for number, hypotheses in zip(share, found, strict=True):
                                results[number] = hypotheses
        except BaseException:
            self._end()
            raise
        return results


def _terminate(processes: Sequence[ForkProcess], owner: int) -> None:
    if os.getpid() != owner:
        # A copy of the process that they work for.
        return
    for process in processes:
        process.terminate()
        process.join()


@contextlib.contextmanager
def _objects_left_alone() -> Iterator[None]:
    """Let processes that begin in a block share the objects that are there with this one for good.

    Collecting garbage writes into every object that it looks at, which would copy them all.
    """
    # Of the young ones alone: looking through all that importing torch has left takes longer than
    # to begin the processes.
    gc.collect(1)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def _other_end() -> Iterator[None]:
    """Let a block use the pipe of a process.

    Raises:
        DeviceError: the process has ended.
    """
    try:
        yield
    except (EOFError, OSError):
        raise DeviceError(
            "a process that translates",
            "has been ended, mostly for want of memory",
            remedy="use fewer `workers`",
        ) from None


class _Progress:
    """Tells the other end of a pipe how many requests are done, but not of each by itself."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._told = time.monotonic()

    def add(self, count: int) -> None:
        self._count += count
        if time.monotonic() - self._told >= TOLD_SECONDS:
            self.tell()

    def tell(self) -> None:
        self._connection.send(self._count)
        self._count, self._told = 0, time.monotonic()


def _serve(engine: Engine, connection: Connection) -> None:
    begin_child()
    torch.set_num_threads(1)
    while True:
        try:
            requests, config, nbest, scored = connection.recv()
        except EOFError:
            return
        progress = _Progress(connection)
        try:
            found = engine.translate(
                requests,
                config,
                nbest=nbest,
                scored=scored,
                on_done=progress.add,
                on_warning=connection.send,
            )
        except DeviceError as error:
            connection.send(error.problems)
        except Exception:
            connection.send(traceback.format_exc())
        else:
            progress.tell()
            connection.send(found)
