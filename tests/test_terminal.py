"""What a terminal gets and a file does not."""

import io
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminals import open_terminal

from tformer_cli.terminal import colored, fitted, is_terminal, progress_bar

# As wide as they look: one column, or two.
CHARACTERS = st.sampled_from("abc é…ß日本語한국")


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def width(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(x) in "WF" else 1 for x in line)


def test_a_closed_stream_and_a_file_are_no_terminals():
    assert not is_terminal(None)
    assert not is_terminal(io.StringIO())
    with open_terminal() as terminal:
        assert is_terminal(terminal.stream)


@pytest.mark.parametrize(
    ("variable", "value", "has_color"),
    [
        ("NO_COLOR", "", True),
        ("NO_COLOR", "1", False),
        ("TERM", "dumb", False),
    ],
)
def test_colors_are_for_terminals_and_can_be_forbidden(monkeypatch, variable, value, has_color):
    monkeypatch.setenv(variable, value)
    assert colored("x", "red", io.StringIO()) == "x"
    with open_terminal() as terminal:
        assert colored("x", "red", terminal.stream) == ("\x1b[31mx\x1b[0m" if has_color else "x")


@given(st.lists(st.text(CHARACTERS, max_size=30), max_size=3), st.integers(3, 20))
def test_lines_fit_and_those_that_do_are_unchanged(lines, columns):
    text = "\n".join(lines)
    assert fitted(text, io.StringIO()) == text
    with open_terminal(columns) as terminal:
        cut = fitted(text, terminal.stream).split("\n")
    assert len(cut) == max(1, len(lines))
    for line, shown in zip(text.split("\n"), cut, strict=True):
        if width(line) < columns:
            assert shown == line
        else:
            assert shown.endswith("…")
            assert line.startswith(shown[:-1])
            # One column is free, and another one before a wide character.
            assert columns - 3 <= width(shown) < columns


class Console(io.StringIO):
    """A terminal without a file."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_that_does_not_tell_its_width_has_80_columns():
    line = "x" * 100
    with open_terminal(columns=0) as terminal:
        assert fitted(line, terminal.stream) == fitted(line, Console()) == f"{'x' * 78}…"


def test_a_bar_is_for_a_terminal_and_counts_lines(monkeypatch):
    with open_terminal() as terminal:
        monkeypatch.setattr(sys, "stderr", terminal.stream)
        with progress_bar("line") as bar:
            bar.total = 7
            bar.update(3)
            bar.refresh()
        with progress_bar("line", is_shown=False) as hidden:
            hidden.update(3)
        text = terminal.text()
    assert "| 3/7 [" in text
    assert " lines/s]" in text
    assert " 3 lines" not in text
