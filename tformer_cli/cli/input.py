"""Where the lines that a command reads come from, and what comes with each of them."""

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tformer_cli.errors import UsageError


class Beside(NamedTuple):
    """Files with a line for each line of the input."""

    prefixes: Path | None
    constraints: Path | None


class AskedLine(NamedTuple):
    """A line to translate.

    Attributes:
        text: the line.
        prefix: what its translation begins with.
        phrases: that its translation has.
    """

    text: str
    prefix: str = ""
    phrases: Sequence[str] = ()


def asked_lines(file: Path, beside: Beside) -> Iterator[AskedLine]:
    """Yield each line of a file with what the files beside it say of it.

    The file itself is read twice where there are two beside it, and otherwise once.

    Raises:
        DataError: a file is not there or no text, or they have unequal numbers of lines.
    """
    from tformer_cli.corpus.reader import read_beside, read_lines

    prefixes, constraints = beside
    if prefixes is not None and constraints is not None:
        both = zip(read_beside(file, prefixes), read_beside(file, constraints), strict=True)
        return (AskedLine(line, prefix, _phrases(row)) for (line, prefix), (_, row) in both)
    if prefixes is not None:
        return (AskedLine(line, prefix) for line, prefix in read_beside(file, prefixes))
    if constraints is not None:
        pairs = read_beside(file, constraints)
        return (AskedLine(line, phrases=_phrases(row)) for line, row in pairs)
    return (AskedLine(line) for line in read_lines(file))


def _phrases(row: str) -> list[str]:
    return [phrase for phrase in row.split("\t") if phrase.strip()]


def has_pipe(*files: Path | None) -> bool:
    """Return whether what is read can be read only once."""
    return any(file is not None and file.is_fifo() for file in files)


def refuse_pipes(files: Mapping[str, Path | None]) -> None:
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
