"""Engine of several processes: on a CPU, one thread per sentence beats all threads on each."""

import contextlib
import gc
import multiprocessing
import os
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch

from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.device import default_num_workers, empty_cache
from tformer_cli.errors import DeviceError, Problem, UsageError, check_positive
from tformer_cli.process import begin_child, num_cores, num_processes
from tformer_cli.search.engine import Engine, Hypothesis, Job, OnDone, OnWarning, Request
from tformer_cli.search.native_engine import NativeEngine

# Least time between two progress messages, which cost the workers time.
PROGRESS_SECONDS = 0.1
# How long a worker may take to be ready, when it is started for the first time, the second, ...
# The last is for a machine that is slow; one that waits for a lock would take for ever.
READY_SECONDS = (5.0, 20.0, 80.0)
# More workers have no core to run on.
MAX_WORKERS_PER_CORE = 4


class WorkersEngine(Engine):
    """Distributes requests over processes, each with one thread, which share the weights.

    Processes start when there are requests for them, and end with this object. An error or Ctrl-C
    during a call ends them too, as their pending messages would answer the next call, which starts
    new ones. Threads that call take turns, and a fork of this process starts workers of its own.

    MKL holds a lock while a thread that has computed ends, and a worker that is forked meanwhile
    waits for it for ever at its first matrix product. So each worker multiplies once and says that
    it is ready; one that does not say so is ended, and another starts.
    """

    def __init__(self, engine: Engine, num_workers: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UsageError(
                "`workers`", "needs a system that can fork", got=str(num_workers), remedy="use 1"
            )
        limit = MAX_WORKERS_PER_CORE * num_cores()
        if num_workers > limit:
            raise UsageError(
                "`workers`",
                f"must be at most {limit}, which is {MAX_WORKERS_PER_CORE} for each core",
                got=str(num_workers),
                remedy="use one for each core, or fewer",
            )
        self.engine = engine
        self.scorer = engine.scorer
        self._num_workers = num_workers
        self._lock = threading.Lock()
        self._has_warned = False
        self._owner = os.getpid()  # the process whose workers these are
        self.processes: list[ForkProcess] = []
        self._connections: list[Connection] = []
        # Closed pipes would not end the workers, as later workers hold copies of them.
        weakref.finalize(self, _kill, self._owner, self.processes)

    def check(self, requests: Sequence[Request], config: DecodingConfig, nbest: int) -> None:
        self.engine.check(requests, config, nbest)

    def decode(self, job: Job, on_done: OnDone, on_warning: OnWarning) -> list[list[Hypothesis]]:
        with self._lock:
            if self._owner != os.getpid():
                self._replace_workers()
            num_workers = min(self._num_workers, len(job.requests))
            try:
                self._start_workers(num_workers)
                return self._gather(job, self._connections[:num_workers], on_done, on_warning)
            except BaseException:
                self._replace_workers()
                raise

    def with_cache(self) -> Engine:
        return WorkersEngine(self.engine.with_cache(), self._num_workers)

    def _replace_workers(self) -> None:
        """End the workers, if they are those of this process, so that others start."""
        _kill(self._owner, self.processes)
        self._owner = os.getpid()
        self.processes = []
        self._connections = []
        weakref.finalize(self, _kill, self._owner, self.processes)

    def _start_workers(self, num_workers: int) -> None:
        """Start workers until so many are ready.

        Raises:
            DeviceError: a worker was killed, or does not become ready however often it starts.
        """
        if len(self.processes) >= num_workers:
            return
        # A lock that another thread holds during a fork is never released in the worker.
        with self.engine.lock:
            # Garbage collection in a worker would write into all objects, and so copy their pages.
            # The young generations only: to visit all objects takes longer than to start workers.
            gc.collect(1)
            gc.freeze()
            try:
                for seconds in READY_SECONDS:
                    num_ready = len(self.processes)
                    while len(self.processes) < num_workers:
                        self._start_worker()
                    self._await_workers(num_ready, seconds)
                    if len(self.processes) == num_workers:
                        return
            finally:
                gc.unfreeze()
        raise DeviceError(
            "a worker process",
            "waits for a lock of another thread, also after it was started anew",
            remedy="translate while no thread that has computed ends, or use 1 of `workers`",
        )

    def _await_workers(self, num_ready: int, seconds: float) -> None:
        """Wait for the workers behind those that are ready; end the ones that take too long."""
        deadline = time.monotonic() + seconds
        started = list(zip(self.processes, self._connections, strict=True))[num_ready:]
        for process, connection in started:
            if connection.poll(max(0.0, deadline - time.monotonic())):
                with _worker_alive():
                    connection.recv()
            else:
                _kill(self._owner, [process])
                self.processes.remove(process)
                self._connections.remove(connection)

    def _start_worker(self) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self.engine, theirs), daemon=True)
        with warnings.catch_warnings():
            # Python warns of threads that hold locks; workers that wait for one are replaced.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        # With the only other copy in the worker, its end is noticed here.
        theirs.close()
        self._connections.append(ours)
        self.processes.append(process)

    def _gather(
        self, job: Job, workers: list[Connection], on_done: OnDone, on_warning: OnWarning
    ) -> list[list[Hypothesis]]:
        """Distribute a job; return its results, pass on progress and warnings, raise errors."""
        results: list[list[Hypothesis]] = [[] for _ in job.requests]
        for index, connection in enumerate(workers):
            # Round-robin, so that all workers have as many long requests.
            with _worker_alive():
                part = job.requests[index :: len(workers)]
                connection.send(job._replace(requests=part, on_draft=None))
        waiting = list(workers)
        while waiting:
            ready = wait(waiting)
            for connection in [part for part in waiting if part in ready]:
                with _worker_alive():
                    message = connection.recv()
                match message:
                    case "progress", count:
                        on_done(count)
                    case "warning", problem:
                        # What one worker lacks, the others lack too.
                        if not self._has_warned:
                            on_warning(problem)
                        self._has_warned = True
                    case "failure", Problem(where, what, got, remedy):
                        raise DeviceError(where, what, got=got, remedy=remedy)
                    case "crash", text:
                        raise RuntimeError(f"in a worker process:\n{text}")
                    case "results", hypotheses:
                        waiting.remove(connection)
                        results[workers.index(connection) :: len(workers)] = hypotheses
        return results


def with_workers(engine: NativeEngine, workers: int | None) -> Engine:
    """Return an engine that shares the work of another between processes; that one for 1 worker.

    None is one for each core of a CPU, or 1 under torchrun.

    Raises:
        UsageError: `workers` is below 1, or the device or the system does not allow processes.
    """
    if workers is None:
        workers = default_num_workers(engine.device) if num_processes() == 1 else 1
    check_positive("`workers`", workers)
    if workers == 1:
        return engine
    if engine.device.type != "cpu":
        remedy = 'use 1, or `device="cpu"`'
        raise UsageError("`workers`", "is for a CPU", got=str(workers), remedy=remedy)
    empty_cache(engine.device)
    return WorkersEngine(engine, workers)


def _kill(owner: int, processes: Sequence[ForkProcess]) -> None:
    """End processes, unless this process is a fork of their owner."""
    if os.getpid() == owner:
        for process in processes:
            # A worker that has just been forked still has the SIGTERM handler of this process.
            process.kill()
            process.join()


@contextlib.contextmanager
def _worker_alive() -> Iterator[None]:
    """Use the pipe of a worker; raise a DeviceError if the worker has ended."""
    try:
        yield
    except (EOFError, OSError):
        raise DeviceError(
            "a worker process", "was killed, probably out of memory", remedy="use fewer `workers`"
        ) from None


class _Progress:
    """Sends how many requests are done, a few times per second at most."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._count = 0
        self._last_time = time.monotonic()

    def add(self, count: int) -> None:
        self._count += count
        if time.monotonic() - self._last_time >= PROGRESS_SECONDS:
            self.send()

    def send(self) -> None:
        self.connection.send(("progress", self._count))
        self._count = 0
        self._last_time = time.monotonic()


def _serve(engine: Engine, connection: Connection) -> None:
    """Translate what comes through the pipe, until it is closed; answer by (kind, content)."""
    begin_child()
    torch.set_num_threads(1)
    # A product of this type goes through MKL's memory, where there is MKL.
    square = torch.ones(12, 12, dtype=torch.float64)
    square.mm(square)
    connection.send(("ready", None))
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        progress = _Progress(connection)

        def on_warning(problem: Problem) -> None:
            connection.send(("warning", problem))

        try:
            results = engine.rerank(job, engine.decode(job, progress.add, on_warning))
        except DeviceError as error:
            connection.send(("failure", *error.problems))
        except Exception:
            connection.send(("crash", traceback.format_exc()))
        else:
            progress.send()
            connection.send(("results", results))
