import itertools
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tformer_cli.corpus.prefetch import available_lines, prefetch


def test_available_lines_keeps_every_line_in_order():
    lines = [str(number) for number in range(1000)]
    windows = list(available_lines(iter(lines), 64))
    assert [line for window in windows for line in window] == lines
    assert max(map(len, windows)) <= 64


def test_a_line_comes_before_the_next_one_is_written():
    may_go_on = threading.Event()

    def slow_writer():
        yield "first"
        assert may_go_on.wait(timeout=10)
        yield "second"

    windows = available_lines(slow_writer(), 64)
    assert next(windows) == ["first"]
    may_go_on.set()
    assert list(windows) == [["second"]]


def test_an_error_of_the_reader_comes_after_the_lines_before_it():
    def broken():
        yield "good"
        raise ValueError("line 2 is broken")

    windows = available_lines(broken(), 64)
    assert next(windows) == ["good"]
    with pytest.raises(ValueError, match="line 2 is broken"):
        next(windows)


def test_prefetch_keeps_every_item_in_order():
    assert list(prefetch(iter(range(1000)), 3)) == list(range(1000))
    assert list(prefetch([None, None], 1)) == [None, None]


def test_prefetch_makes_what_comes_next_while_the_last_one_is_in_use():
    made: list[int] = []
    has_made = threading.Semaphore(0)

    def items():
        for number in range(10):
            made.append(number)
            yield number
            has_made.release()

    coming = prefetch(items(), 2)
    assert next(coming) == 0
    # Two wait to be asked for, the next one is made and waits for room.
    for _ in range(3):
        assert has_made.acquire(timeout=10)
    assert made[:3] == [0, 1, 2]
    assert len(made) <= 4
    assert list(coming) == list(range(1, 10))


def test_an_error_of_what_is_prefetched_comes_in_its_place():
    def broken():
        yield 1
        raise ValueError("no second")

    coming = prefetch(broken(), 4)
    assert next(coming) == 1
    with pytest.raises(ValueError, match="no second"):
        next(coming)


def test_nobody_makes_more_when_nobody_wants_more():
    has_ended = threading.Event()

    def items():
        try:
            yield from itertools.count()
        finally:
            has_ended.set()

    coming = prefetch(items(), 2)
    assert next(coming) == 0
    coming.close()
    assert has_ended.wait(timeout=10)


def test_a_script_needs_no_guard_to_share_its_work(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tformer_cli.corpus.prefetch import map_in_processes\n"
        "print(*map_in_processes(len, ['a', 'bc', 'def'], 2))\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "1 2 3\n", "")
