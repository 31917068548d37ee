"""Where lines come from and where they go, without a model."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tformer_cli.cli.entry import named_stdout
from tformer_cli.cli.streams import (
    check_outputs,
    line_writer,
    reject_gzip,
    stdin_lines,
)
from tformer_cli.errors import StorageError, UsageError
from tformer_cli.translate.preprocess import InputLine, read_input_lines


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
    assert list(read_input_lines(pipe, None, tmp_path / "phrases")) == [
        InputLine("ab", "", ["A", "B C"]),
        InputLine("cd", "", []),
    ]


def test_lines_of_a_pipe_have_the_prefixes_beside_them(pipe, tmp_path):
    (tmp_path / "prefixes").write_text("A\n\n")
    found = read_input_lines(pipe, tmp_path / "prefixes", None)
    assert list(found) == [InputLine("ab", "A"), InputLine("cd")]


def test_lines_of_a_pipe_have_prefixes_and_phrases_beside_them(pipe, tmp_path):
    (tmp_path / "prefixes").write_text("A\n\n")
    (tmp_path / "phrases").write_text("\nB\tC\n")
    found = read_input_lines(pipe, tmp_path / "prefixes", tmp_path / "phrases")
    assert list(found) == [InputLine("ab", "A", []), InputLine("cd", "", ["B", "C"])]


def test_a_closed_stdin_is_a_mistake(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError) as raised:
        stdin_lines()
    assert str(raised.value) == "--input: stdin is closed; name a file"


def test_a_closed_stdout_is_a_mistake(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(UsageError) as raised, line_writer(None):
        pass
    assert str(raised.value) == "--output: stdout is closed; name a file"


def test_a_reader_that_has_gone_ends_all_streams_quietly_and_leaves_no_part(monkeypatch, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with named_stdout(), line_writer(None) as output, line_writer(tmp_path / "pairs") as beside:
            beside.add("0-0\n", 1)
            output.add("a line\n", 1)
            raise AssertionError("the reader has gone")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_what_stdout_refuses_is_not_said_of_the_file_beside_it(monkeypatch, tmp_path):
    with open("/dev/full", "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with (
            pytest.raises(StorageError) as raised,
            named_stdout(),
            line_writer(None) as output,
            line_writer(tmp_path / "pairs"),
        ):
            output.add("a line\n", 1)
    assert str(raised.value) == (
        "<stdout>: cannot be written (No space left on device); what came out is not whole"
    )
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from tformer_cli.cli.streams import line_writer
with line_writer(Path("/dev/stdout")) as output:
    output.add("a line\\n", 1)
"""


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="stdout has no name here")
def test_stdout_by_its_name_keeps_what_stands_before_and_behind(tmp_path):
    file = tmp_path / "file"
    with file.open("w") as stdout:
        for words in (["echo", "head"], [sys.executable, "-c", WRITER], ["echo", "tail"]):
            subprocess.run(words, stdout=stdout, check=True)
    assert file.read_text() == "head\na line\ntail\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_written_is_neither_read_nor_written_by_another_option(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    for other in (file, link, tmp_path / "folder" / ".." / "file"):
        with pytest.raises(UsageError) as raised:
            check_outputs({"--output": other}, {"--input": file, "--prefixes": None})
        assert str(raised.value) == (f"--output: is also --input ({other}); name another file")
    with pytest.raises(UsageError) as raised:
        check_outputs({"--output": file, "--alignments": link}, {})
    assert str(raised.value) == f"--alignments: is also --output ({link}); name another file"


def test_what_replaces_nothing_may_be_named_twice(tmp_path):
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    terminal = os.openpty()
    device = Path(os.ttyname(terminal[1]))
    for twice in (pipe, device, None):
        check_outputs({"--output": twice, "--alignments": twice}, {"--input": device})
    for descriptor in terminal:
        os.close(descriptor)
    check_outputs({"--output": tmp_path / "other"}, {"--source": file, "--target": file})
    assert file.read_text() == ""


def test_plain_text_is_not_named_gzip():
    reject_gzip({"--output": Path("out.gz.de"), "--alignments": None})
    with pytest.raises(UsageError) as raised:
        reject_gzip({"--output": None, "--alignments": Path("pairs.gz")})
    assert str(raised.value) == (
        "--alignments: is written as plain text (pairs.gz); drop .gz from its name"
    )


def run_with(stdout: int, *arguments: str, unbuffered: str) -> tuple[int, str]:
    """Run `tformer` with some stdout; return its exit code and what it says on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "tformer_cli", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_ends_every_command_quietly(unbuffered):
    for arguments in (["--help"], ["--version"], ["config", "show", "configs/demo.yaml"]):
        reader, writer = os.pipe()
        os.close(reader)
        assert run_with(writer, *arguments, unbuffered=unbuffered) == (0, "")
        os.close(writer)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_named_by_every_command(unbuffered):
    with open("/dev/full", "wb") as full:
        found = run_with(
            full.fileno(), "config", "show", "configs/demo.yaml", unbuffered=unbuffered
        )
    assert found == (
        2,
        "<stdout>: cannot be written (No space left on device); what came out is not whole\n",
    )
