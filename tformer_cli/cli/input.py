"""Where the lines that a command reads come from, and what comes with each of them."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from tformer_cli.errors import UsageError


class SideInputs(NamedTuple):
    """Files with a line for each line of the input."""

    prefixes: Path | None
    constraints: Path | None


class InputLine(NamedTuple):
    """A line to translate.

    Attributes:
        text: the line.
        prefix: what its translation begins with.
        phrases: that its translation has.
    """

    text: str
    prefix: str = ""
    phrases: Sequence[str] = ()


def input_lines(file: Path, beside: SideInputs) -> Iterator[InputLine]:
    """Yield each line of a file with what the files beside it say of it.

    The file itself is read twice where there are two beside it, and otherwise once.

    Raises:
        DataError: a file is not there or no text, or they have unequal numbers of lines.
    """
    from tformer_cli.corpus.reader import read_beside, read_lines

    prefixes, constraints = beside
    if prefixes is not None and constraints is not None:
        both = zip(read_beside(file, prefixes), read_beside(file, constraints), strict=True)
        return (InputLine(line, prefix, _phrases(row)) for (line, prefix), (_, row) in both)
    if prefixes is not None:
        return (InputLine(line, prefix) for line, prefix in read_beside(file, prefixes))
    if constraints is not None:
        pairs = read_beside(file, constraints)
        return (InputLine(line, phrases=_phrases(row)) for line, row in pairs)
    return (InputLine(line) for line in read_lines(file))


def _phrases(row: str) -> list[str]:
    return [phrase for phrase in row.split("\t") if phrase.strip()]


def has_pipe(*files: Path | None) -> bool:
    """Return whether what is read can be read only once."""
    return any(file is not None and file.is_fifo() for file in files)


def reject_pipes(files: Mapping[str, Path | None]) -> None:
    """Make sure that what is read more than once can be.

    Args:
        files: by the options that name them.

    Raises:
        UsageError: one of them is a pipe.
    """
    for option, file in files.items():
        if has_pipe(file):
            raise UsageError(
                option,
                "must be read more than once, and a pipe cannot be",
                remedy="write it to a file first",
            )


def stdin_lines() -> Iterator[str]:
    """Return the lines of stdin, for the thread alone that reads them.

    Where `sys.stdin` has its bytes too, Python closes them at exit, and aborts if the thread
    still waits for a line.

    Raises:
        UsageError: stdin is closed.
    """
    from tformer_cli.corpus.reader import decode_lines

    if sys.stdin is None:
        raise UsageError("--input", "stdin is closed", remedy="name a file")
    assert isinstance(sys.stdin, io.TextIOWrapper)
    return decode_lines(sys.stdin.detach(), "<stdin>")


def run_and_sentence(words: Sequence[str]) -> tuple[Path | None, str | None]:
    """Return the run folder and the sentence that a command line names, if any.

    What is there, or looks like a path, is a run. What stands behind it or alone is a sentence.

    Raises:
        UsageError: it is neither, or there are more words.
    """
    match words:
        case []:
            return None, None
        case [only] if not os.path.exists(only) and ("/" not in only or " " in only):
            return None, only
        case [only]:
            if os.path.isfile(only) and not only.endswith((".yaml", ".yml")):
                raise UsageError(only, "is a file", remedy=f"use --input {only}")
            return Path(only), None
        case [run, sentence] if os.path.isdir(run) or "/" in run or " " in sentence:
            if os.path.isfile(sentence):
                raise UsageError(sentence, "is a file", remedy=f"use --input {sentence}")
            return Path(run), sentence
    raise UsageError(
        "SENTENCE", "must be one argument", got=" ".join(words), remedy="put it in quotes"
    )


def given_lines(text: str) -> Iterator[str]:
    """Return the lines of a text on the command line; there is at least one.

    Raises:
        DataError: it is not UTF-8.
    """
    from tformer_cli.corpus.reader import decode_lines

    return decode_lines(io.BytesIO(text.encode("utf-8", "surrogateescape") or b"\n"), "SENTENCE")


def is_terminal() -> bool:
    """Return whether somebody types lines and reads what stderr says."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def typed_lines(prompt: str) -> Iterator[str]:
    """Return the lines that are typed at a terminal, each asked for when it is wanted.

    Raises:
        DataError: a line is not UTF-8.
    """
    from tformer_cli.corpus.reader import decode_lines

    # Python's input() edits lines and knows earlier ones where this has been imported.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    assert isinstance(sys.stdin, io.TextIOWrapper)
    sys.stdin.reconfigure(errors="surrogateescape")
    return decode_lines(iter(lambda: _typed(prompt), b""), "<stdin>")


def _typed(prompt: str) -> bytes:
    """Return a line that is typed, with its end; nothing at Ctrl-D."""
    if not sys.stdout.isatty():
        # input() would write the prompt among the translations.
        typer.echo(prompt, nl=False, err=True)
        return sys.stdin.readline().encode("utf-8", "surrogateescape")
    try:
        return input(prompt).encode("utf-8", "surrogateescape") + b"\n"
    except EOFError:
        typer.echo(err=True)
        return b""
