"""An engine of processes gives what the engine in them gives."""

import gc
import multiprocessing
import os
import signal
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from search.test_engine import SEARCHES, asked, native_engine, requests

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.errors import DeviceError, UsageError
from tformer_cli.process import begin_child
from tformer_cli.search.engine import EMPTY, Engine, Hypothesis
from tformer_cli.search.workers import WorkersEngine


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_processes_translate_as_one_does(search):
    engine, inputs = native_engine(), requests(25)
    counts: list[int] = []
    found = WorkersEngine(engine, 3).translate(inputs, search, on_done=counts.append)
    expected = engine.translate(inputs, search)
    assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]
    assert sum(counts) == len(inputs)


def test_more_processes_than_sentences_do_no_harm():
    workers = WorkersEngine(native_engine(), 4)
    for inputs in ([], [[]], [[7, 8, 3]], [[7, 3], [], [8, 9, 3]]):
        found = workers.translate(asked(*inputs), BeamConfig(beam_size=3, max_length=9), nbest=2)
        assert [len(hypotheses) for hypotheses in found] == [2 for _ in inputs]
        empty = [hypotheses == [EMPTY] * 2 for hypotheses in found]
        assert empty == [not sentence for sentence in inputs]


def test_a_process_begins_when_there_is_a_sentence_for_it():
    workers, begun = WorkersEngine(native_engine(), 3), []
    for inputs in ([], [[]], [[7, 3], []], [[8, 3]], [[7, 3], [8, 3]], [[7, 3]] * 9):
        workers.translate(asked(*inputs), SEARCHES[0])
        begun.append(len(workers.processes))
    assert begun == [0, 0, 1, 1, 2, 3]


def test_processes_translate_an_empty_sentence_as_often_as_one_does():
    inputs = asked([7, 8, 3], [])
    for groups in (1, 2):
        search = BeamConfig(beam_size=4, num_beam_groups=groups, max_length=9)
        (_, expected) = native_engine().translate(inputs, search, nbest=3)
        (_, found) = WorkersEngine(native_engine(), 2).translate(inputs, search, nbest=3)
        assert found == expected == [EMPTY] * (3 if groups == 1 else 1)


class Broken(Engine):
    """An engine that does something worse than translating."""

    scorer = None

    def __init__(self, deed):
        self.deed = deed

    def decode(self, job, on_done, on_warning) -> list[list[Hypothesis]]:
        self.deed()
        return []


def test_processes_leave_the_objects_of_this_one_alone():
    """Garbage collection would write into all of them, and so copy them."""

    def count():
        raise RuntimeError(f"{gc.get_freeze_count()} objects")

    with pytest.raises(RuntimeError, match=r"[1-9]\d{4,} objects"):
        WorkersEngine(Broken(count), 1).translate(asked([7, 3]), SEARCHES[0])
    assert gc.get_freeze_count() == 0


def test_a_process_that_is_ended_is_told():
    workers = WorkersEngine(Broken(lambda: os.kill(os.getpid(), signal.SIGKILL)), 2)
    with pytest.raises(DeviceError) as raised:
        workers.translate(asked([7, 3]), SEARCHES[0])
    assert str(raised.value) == (
        "a worker process: was killed, probably out of memory; use fewer `workers`"
    )


def test_a_fault_in_a_process_is_shown_here():
    workers = WorkersEngine(Broken(lambda: [][1]), 1)
    with pytest.raises(RuntimeError, match="IndexError: list index out of range"):
        workers.translate(asked([7, 3]), SEARCHES[0])


class BrokenHere(Engine):
    """An engine that fails where a certain source comes first."""

    def __init__(self):
        self.engine = native_engine()
        self.scorer = self.engine.scorer

    def decode(self, job, on_done, on_warning) -> list[list[Hypothesis]]:
        if job.requests[0].source == WRONG:
            raise IndexError
        return self.engine.decode(job, on_done, on_warning)


WRONG = [7] * 9


def test_after_a_fault_the_next_answer_is_that_of_the_next_call():
    engine = BrokenHere()
    workers, inputs = WorkersEngine(engine, 2), requests(7)
    with pytest.raises(RuntimeError, match="IndexError"):
        workers.translate(asked(WRONG, [8, 3], [9, 3]), SEARCHES[0])
    found = workers.translate(inputs, SEARCHES[0])
    expected = engine.translate(inputs, SEARCHES[0])
    assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_is_left_of_a_call_that_was_broken_off_answers_no_other(error):
    def broken_off(count):
        if count:
            raise error

    engine, inputs = native_engine(), [one for one in requests(12) if one.source]
    workers = WorkersEngine(engine, 2)
    workers.translate(inputs, SEARCHES[0])
    begun = [*workers.processes]
    with pytest.raises(error):
        workers.translate(inputs[::-1], SEARCHES[0], on_done=broken_off)
    assert not any(process.is_alive() for process in begun)
    found = workers.translate(inputs, SEARCHES[0])
    expected = engine.translate(inputs, SEARCHES[0])
    assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]


class Slow(Engine):
    """An engine that says each source again, after a while."""

    scorer = None

    def decode(self, job, on_done, on_warning) -> list[list[Hypothesis]]:
        time.sleep(0.02)
        return [[Hypothesis(tuple(one.source), 0.0, 0.0, True)] for one in job.requests]


class Picky(Slow):
    """An engine that refuses every request."""

    def check(self, requests, config, nbest) -> None:
        raise UsageError("`requests`", "must be others")


def test_what_the_engine_refuses_is_refused_before_a_process_begins():
    workers = WorkersEngine(Picky(), 2)
    with pytest.raises(UsageError, match="must be others"):
        workers.translate(asked([7, 3]), SEARCHES[0])
    assert not workers.processes


def test_each_of_several_threads_has_its_own_answers():
    workers = WorkersEngine(Slow(), 2)
    calls = [[[number, n, 3] for n in range(5)] for number in range(12)]
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda call: workers.translate(asked(*call), SEARCHES[0]), calls)
        found = [[list(best.token_ids) for (best,) in answer] for answer in answers]
    assert found == calls


class Watched:
    """A lock that tells whether a thread waits for it."""

    def __init__(self, lock):
        self.lock = lock
        self.is_awaited = threading.Event()

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.is_awaited.set()
            self.lock.acquire()

    def __exit__(self, *error):
        self.lock.release()


def test_processes_begin_when_no_other_thread_computes():
    """A process that is forked meanwhile would wait for that thread, which it does not have."""
    engine, inputs = native_engine(), requests(5)
    engine.lock = lock = Watched(engine.lock)
    workers = WorkersEngine(engine, 2)
    is_computing = threading.Event()

    def on_done(count: int) -> None:
        if count:
            is_computing.set()
            assert lock.is_awaited.wait(30)

    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(engine.translate, inputs, SEARCHES[0], on_done=on_done)
        assert is_computing.wait(30)
        answer = threads.submit(workers.translate, inputs, SEARCHES[0])
        try:
            expected = other.result()
        finally:
            if not lock.is_awaited.is_set():
                for process in workers.processes:
                    process.kill()
        found = answer.result()
    assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]


class CutShort(Engine):
    """An engine whose process ends within a message."""

    scorer = None

    def decode(self, job, on_done, on_warning) -> list[list[Hypothesis]]:
        connection = on_done.__self__.connection
        os.write(connection.fileno(), struct.pack("!i", 100) + b"no hundred bytes")
        os._exit(1)


def test_a_process_that_is_ended_while_it_speaks_is_told():
    workers = WorkersEngine(CutShort(), 1)
    with pytest.raises(DeviceError, match="was killed"):
        workers.translate(asked([7, 3]), SEARCHES[0])


def test_processes_end_with_their_engine():
    first, second = WorkersEngine(native_engine(), 2), WorkersEngine(native_engine(), 2)
    for workers in (first, second):
        workers.translate(requests(5), SEARCHES[0])
    ended, left = first.processes, second.processes
    del first, workers
    gc.collect()
    assert [process.is_alive() for process in (*ended, *left)] == [False, False, True, True]
    assert len(second.translate(requests(5), SEARCHES[0])) == 5


def test_sigterm_ends_a_process_whatever_this_one_does_on_it():
    received: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        workers = WorkersEngine(Slow(), 1)
        workers.translate(asked([7, 3]), SEARCHES[0])
    finally:
        signal.signal(signal.SIGTERM, former)
    (process,) = workers.processes
    os.kill(process.pid, signal.SIGTERM)
    process.join(30)
    assert (process.exitcode, received) == (-signal.SIGTERM, [])


def test_a_process_that_is_forked_has_its_own_and_leaves_those_of_the_first_alone():
    workers, inputs = WorkersEngine(Slow(), 2), asked([7, 3], [8, 9, 3])
    expected = workers.translate(inputs, SEARCHES[0])
    # Garbage of this process may wait for threads that a fork does not have.
    gc.collect()
    copy = os.fork()
    if not copy:
        code = 1
        try:
            begun = [process.pid for process in workers.processes]
            is_right = workers.translate(inputs, SEARCHES[0]) == expected
            own = [process.pid for process in workers.processes]
            del workers
            gc.collect()
            code = 0 if is_right and len({*begun, *own}) == 4 else 1
        finally:
            # An error would go on as a second run of the tests.
            os._exit(code)
    assert os.waitpid(copy, 0)[1] == 0
    assert [process.is_alive() for process in workers.processes] == [True, True]
    assert workers.translate(inputs, SEARCHES[0]) == expected


def hold_up(monkeypatch, num_workers: int):
    """Let the first workers wait for ever where others begin; return a count of all that do."""
    begun = multiprocessing.get_context("fork").Value("i", 0)

    def begin() -> None:
        with begun.get_lock():
            begun.value += 1
            is_held_up = begun.value <= num_workers
        if is_held_up:
            time.sleep(600)
        begin_child()

    monkeypatch.setattr("tformer_cli.search.workers.begin_child", begin)
    monkeypatch.setattr("tformer_cli.search.workers.READY_SECONDS", (0.5, 60, 60))
    return begun


def test_a_process_that_does_not_become_ready_is_replaced(monkeypatch):
    begun = hold_up(monkeypatch, 1)
    engine = native_engine()
    workers = WorkersEngine(engine, 3)
    found = workers.translate(requests(9), SEARCHES[0])
    expected = engine.translate(requests(9), SEARCHES[0])
    assert [best.token_ids for (best,) in found] == [best.token_ids for (best,) in expected]
    # A slow machine may take longer than the first time for the others as well.
    assert begun.value >= 4
    assert [process.is_alive() for process in workers.processes] == [True] * 3


def test_processes_that_never_become_ready_are_told_and_ended(monkeypatch):
    begun = hold_up(monkeypatch, 99)
    monkeypatch.setattr("tformer_cli.search.workers.READY_SECONDS", (0.1, 0.1))
    others = set(multiprocessing.active_children())
    workers = WorkersEngine(native_engine(), 2)
    with pytest.raises(DeviceError) as caught:
        workers.translate(requests(9), SEARCHES[0])
    assert str(caught.value) == (
        "a worker process: waits for a lock of another thread, also after it was started anew; "
        "translate while no thread that has computed ends, or use 1 of `workers`"
    )
    assert workers.processes == []
    assert set(multiprocessing.active_children()) <= others
    assert begun.value <= 4


def test_processes_begin_while_threads_that_have_computed_end(monkeypatch):
    """Of thirty forks in these moments, about one waits for ever."""
    monkeypatch.setattr("tformer_cli.search.workers.READY_SECONDS", (1, 20, 80))
    engine, inputs, stop = native_engine(), requests(4), threading.Event()
    expected = [best.token_ids for (best,) in engine.translate(inputs, SEARCHES[0])]
    matrix = torch.ones(12, 12, dtype=torch.float64)

    def churn() -> None:
        while not stop.is_set():
            thread = threading.Thread(target=matrix.mm, args=(matrix,))
            thread.start()
            thread.join()

    churner = threading.Thread(target=churn)
    churner.start()
    try:
        for _ in range(20):
            found = WorkersEngine(engine, 2).translate(inputs, SEARCHES[0])
            assert [best.token_ids for (best,) in found] == expected
    finally:
        stop.set()
        churner.join()


def test_a_system_that_cannot_fork_is_refused(monkeypatch):
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(UsageError) as raised:
        WorkersEngine(native_engine(), 2)
    assert str(raised.value) == "`workers`: needs a system that can fork (2); use 1"


def test_no_more_processes_begin_than_cores_have_use_for(monkeypatch):
    monkeypatch.setattr("tformer_cli.search.workers.num_cores", lambda: 2)
    with pytest.raises(UsageError) as caught:
        WorkersEngine(native_engine(), 9)
    assert str(caught.value) == (
        "`workers`: must be at most 8, which is 4 for each core (9); "
        "use one for each core, or fewer"
    )
