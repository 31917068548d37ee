"""Where the lines that a command writes go."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from tformer_cli.cli.entry import ReaderGone
from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import atomic_write

# Behind `> FILE` it is that file, which holds what others have written and must not be replaced.
STDOUT = Path("/dev/stdout")
# Behind `< FILE` it is that file, too.
STDIN = Path("/dev/stdin")


def reject_overwriting(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]
) -> None:
    """Make sure that what is written replaces nothing that is read, nor what else is written.

    Pipes and devices replace nothing.

    Args:
        outputs: files by the options that name them.
        inputs: likewise.

    Raises:
        UsageError: a file has two parts.
    """
    taken = {os.path.realpath(file): option for option, file in inputs.items() if file is not None}
    for option, file in outputs.items():
        if file is None or (file.exists() and not file.is_file()):
            continue
        other = taken.setdefault(os.path.realpath(file), option)
        if other != option:
            raise UsageError(option, f"is also {other}", got=str(file), remedy="name another file")


def reject_gzip_names(outputs: Mapping[str, Path | None]) -> None:
    """Make sure that what is written can be read again by its name.

    Args:
        outputs: files by the options that name them.

    Raises:
        UsageError: one of them is named as if it were gzip.
    """
    for option, file in outputs.items():
        if file is not None and file.suffix == ".gz":
            raise UsageError(
                option, "is written as plain text", got=str(file), remedy="drop .gz from its name"
            )


class Stream:
    """Where lines go as they come.

    Attributes:
        num_lines: that are done already: none.
    """

    num_lines = 0

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def add(self, text: str, num_lines: int) -> None:
        """Write what comes of some more lines."""
        self._file.write(text)
        self._file.flush()


@contextlib.contextmanager
def streamed(file: Path | None) -> Iterator[Stream]:
    """Open stdout, or a file that appears when it is complete, for lines as they come."""
    with opened(file) as output:
        yield Stream(output)


@contextlib.contextmanager
def discarded() -> Iterator[Stream]:
    """Open what nobody reads, for lines as they come."""
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        yield Stream(nothing)


@contextlib.contextmanager
def opened(file: Path | None) -> Iterator[TextIO]:
    """Open stdout, or a file that appears when it is complete.

    Raises:
        UsageError: stdout is closed.
        StorageError: the system does not let the file be written.
    """
    if file in (None, STDOUT):
        if sys.stdout is None:
            raise UsageError("--output", "stdout is closed", remedy="name a file")
        # Whatever the platform and the locale: UTF-8, and LF at the end of a line.
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        # Where nobody reads it any more, enough has been written.
        with contextlib.suppress(ReaderGone):
            yield sys.stdout
            sys.stdout.flush()
        return
    with (
        atomic_write(file) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as output,
    ):
        yield output
