"""Where the lines that a command reads come from, and what comes with each of them."""

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


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

    Raises:
        DataError: a file is not there or no text, or they have unequal numbers of lines.
    """
    from tformer_cli.corpus.reader import read_lines, read_pairs

    def pairs(other: Path | None) -> Iterator[tuple[str, str]]:
        return (
            ((line, "") for line in read_lines(file)) if other is None else read_pairs(file, other)
        )

    if beside.constraints is None:
        return (AskedLine(line, prefix) for line, prefix in pairs(beside.prefixes))
    both = zip(pairs(beside.prefixes), read_pairs(file, beside.constraints), strict=True)
    return (
        AskedLine(line, prefix, [phrase for phrase in phrases.split("\t") if phrase.strip()])
        for (line, prefix), (_, phrases) in both
    )


def has_pipe(*files: Path | None) -> bool:
    """Return whether what is read can be read only once."""
    return any(file is not None and file.is_fifo() for file in files)


def stdin_lines() -> Iterator[str]:
    """Return the lines of stdin, for the thread alone that reads them.

    Where `sys.stdin` has its bytes too, Python closes them at exit, and aborts if the thread
    still waits for a line.
    """
    from tformer_cli.corpus.reader import decode_lines

    assert isinstance(sys.stdin, io.TextIOWrapper)
    return decode_lines(sys.stdin.detach(), "<stdin>")
