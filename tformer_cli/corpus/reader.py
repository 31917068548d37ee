"""Lines of text files and streams, one at a time: UTF-8, plain or gzip.

A line ends at LF, with or without a CR before it, and nowhere else; a last line without LF
counts. So n lines are n lines to every reader, and parallel files stay parallel.
"""

import contextlib
import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tformer_cli.config.schema.data import ParallelText, Text
from tformer_cli.corpus.file_format import GZIP_MARK, plain_text, reject_archive
from tformer_cli.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; of a gzip file if it is named `.gz`.

    A fault may come to light only at its end, so nothing is a result before all lines are read.

    Raises:
        DataError: the file is missing, unreadable, damaged, or not what its name says; a line
            is not UTF-8.
    """
    name = str(path)
    with _reading(name), path.open("rb") as file:
        if path.suffix != ".gz":
            yield from decode_lines(file, name)
        elif file.peek(2)[:2] != GZIP_MARK:
            raise DataError(
                name,
                "is named .gz but is not gzip" if file.peek(1) else "is empty, which no gzip is",
                remedy="compress it, or drop .gz from its name",
            )
        else:
            with gzip.open(file) as stream:
                yield from decode_lines(stream, name)


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a stream, each as soon as it is there.

    Args:
        stream: lines in UTF-8, with their ends; a byte order mark at its start is dropped.
        name: of the stream, for messages.

    Raises:
        DataError: a line is not UTF-8, the stream is an archive, or it cannot be read.
    """
    with _reading(name):
        for number, line in enumerate(stream, start=1):
            if number == 1:
                reject_archive(line, name)
            if number == 1 and line.startswith(BYTE_ORDER_MARK):
                line = line.removeprefix(BYTE_ORDER_MARK)
                if not line:
                    return
            if line.endswith(b"\n"):
                line = line[:-1].removesuffix(b"\r")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(line, number, error.start, name) from None


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield line n of `source` with line n of `target`, of the two sides of a corpus.

    Raises:
        DataError: a file cannot be read or is not plain text, the two are the same file, or
            (after the last pair) one has more lines.
    """
    if source.is_file() and target.is_file() and source.samefile(target):
        raise DataError(
            str(target),
            "is source and target at once",
            remedy="name the file that holds the translations",
        )
    return _side_by_side(_read_corpus(source), _read_corpus(target), source, target)


def read_beside(lines: Path, others: Path) -> Iterator[tuple[str, str]]:
    """Yield line n of a file to translate, whatever it contains, with line n of another file.

    Raises:
        DataError: a file cannot be read, or (after the last pair) one has more lines.
    """
    return _side_by_side(read_lines(lines), read_lines(others), lines, others)


def _read_corpus(path: Path) -> Iterator[str]:
    return plain_text(read_lines(path), path)


def _side_by_side(
    sources: Iterator[str], targets: Iterator[str], source: Path, target: Path
) -> Iterator[tuple[str, str]]:
    num_pairs = 0
    for source_line, target_line in itertools.zip_longest(sources, targets):
        if source_line is None or target_line is None:
            break
        yield source_line, target_line
        num_pairs += 1
    else:
        return
    longer, shorter = (target, source) if source_line is None else (source, target)
    num_lines = num_pairs + 1 + sum(1 for _ in (targets if source_line is None else sources))
    raise DataError(
        f"{longer}:{num_pairs + 1}",
        f"has no counterpart in {shorter}",
        got=f"{num_lines:,} and {num_pairs:,} lines",
        remedy="line n of one file must translate line n of the other",
    )


def read_rows(text: Text) -> Iterator[tuple[str, ...]]:
    """Yield line n of each side that a text has.

    Raises:
        DataError: a file cannot be read or is not plain text, or (after the last pair) one has
            more lines.
    """
    if isinstance(text, ParallelText):
        return read_pairs(text.source, text.target)
    return ((line,) for line in _read_corpus(text.text))


def read_texts(texts: Iterable[Text]) -> Iterator[tuple[str, str]]:
    """Yield all pairs, text after text; a text alone has empty targets.

    Raises:
        DataError: as `read_rows`.
    """
    for text in texts:
        yield from map(as_pair, read_rows(text))


def as_pair(row: tuple[str, ...]) -> tuple[str, str]:
    """Return a row as source and target; the target of a text alone is empty."""
    return row if len(row) == 2 else (row[0], "")


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Say of `name` why it cannot be read."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            name, "is damaged gzip", got=str(error), remedy="compress or download it again"
        ) from None
    except FileNotFoundError:
        raise DataError(name, "no such file", remedy="name a text that is there") from None
    except IsADirectoryError:
        raise DataError(name, "is a folder", remedy="name a file in it") from None
    except OSError as error:
        raise DataError(name, "cannot be read", got=error.strerror) from None


def _not_utf8(line: bytes, number: int, fault: int, name: str) -> DataError:
    """Say where a line stops being UTF-8, and what the file is instead, if that shows."""
    if number == 1 and line.startswith(GZIP_MARK):
        return DataError(name, "is gzip", remedy="let its name end in .gz, or decompress it")
    if number == 1 and line.startswith(UTF_16_MARKS):
        remedy = "it begins like UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`"
    else:
        remedy = "convert it, from Latin-1 for instance with `iconv -f LATIN1 -t UTF-8`"
    column = len(line[:fault].decode("utf-8")) + 1
    return DataError(
        f"{name}:{number}",
        f"not UTF-8 (byte 0x{line[fault]:02x} at column {column})",
        remedy=remedy,
    )
