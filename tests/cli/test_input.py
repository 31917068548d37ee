"""Where lines come from, without a model."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tformer_cli.cli.input import InputLine, SideInputs, input_lines, stdin_lines
from tformer_cli.errors import UsageError


@pytest.fixture
def pipe() -> Iterator[Path]:
    """What `<(...)` of a shell is: whoever opens it later reads on where the first one is."""
    reader, writer = os.pipe()
    os.write(writer, b"ab\ncd\n")
    os.close(writer)
    yield Path(f"/dev/fd/{reader}")
    os.close(reader)


def test_lines_of_a_pipe_have_the_phrases_beside_them(pipe, tmp_path):
    (tmp_path / "phrases").write_text("A\t \tB C\n\n")
    assert list(input_lines(pipe, SideInputs(None, tmp_path / "phrases"))) == [
        InputLine("ab", "", ["A", "B C"]),
        InputLine("cd", "", []),
    ]


def test_lines_of_a_pipe_have_the_prefixes_beside_them(pipe, tmp_path):
    (tmp_path / "prefixes").write_text("A\n\n")
    found = input_lines(pipe, SideInputs(tmp_path / "prefixes", None))
    assert list(found) == [InputLine("ab", "A"), InputLine("cd")]


def test_a_closed_stdin_is_a_mistake(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError) as raised:
        stdin_lines()
    assert str(raised.value) == "--input: stdin is closed; name a file"
