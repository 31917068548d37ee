import threading

import pytest

from tformer_cli.corpus.read_ahead import arriving


def test_arriving_keeps_every_line_in_order():
    lines = [str(number) for number in range(1000)]
    windows = list(arriving(iter(lines), 64))
    assert [line for window in windows for line in window] == lines
    assert max(map(len, windows)) <= 64


def test_a_line_comes_before_the_next_one_is_written():
    may_go_on = threading.Event()

    def slow_writer():
        yield "first"
        assert may_go_on.wait(timeout=10)
        yield "second"

    windows = arriving(slow_writer(), 64)
    assert next(windows) == ["first"]
    may_go_on.set()
    assert list(windows) == [["second"]]


def test_an_error_of_the_reader_comes_after_the_lines_before_it():
    def broken():
        yield "good"
        raise ValueError("line 2 is broken")

    windows = arriving(broken(), 64)
    assert next(windows) == ["good"]
    with pytest.raises(ValueError, match="line 2 is broken"):
        next(windows)
