"""Lines of text files in UTF-8, plain or compressed; archives are rejected.

A line ends at LF, optionally after CR, and nowhere else; a last line without LF counts. So all
readers agree on the number of lines, and parallel files stay parallel.
"""

import bz2
import contextlib
import gzip
import io
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

from tformer_cli.errors import DataError
from tformer_cli.extras import package

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")

SPLIT_SIDES = "write source and target into two text files, one sentence a line"
_SAVE_TEXT = "save it as plain text, one sentence a line"
# Patterns of their first bytes.
_NO_TEXTS = {
    rb".{257}ustar": ("a tar archive", "unpack it with `tar -xf`"),
    rb"PK\x03\x04": ("a zip archive", "unpack it with `unzip`"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "unpack it with `7z x`"),
    rb"%PDF-": ("a PDF document", _SAVE_TEXT),
    rb"\{\\rtf": ("an RTF document", _SAVE_TEXT),
    rb"\xd0\xcf\x11\xe0": ("a document of an old version of Office", _SAVE_TEXT),
    rb"WEBVTT(?!\S)": ("WebVTT", "convert it to SRT, as `ffmpeg -i a.vtt a.srt` does"),
    # Without a byte order mark, ASCII in UTF-16 is valid UTF-8 with NULs.
    rb"([^\x00]\x00){4}": ("UTF-16", "convert it with `iconv -f UTF-16LE -t UTF-8`"),
    rb"(\x00[^\x00]){4}": ("UTF-16", "convert it with `iconv -f UTF-16BE -t UTF-8`"),
}
_SAVE_CELLS = "save it as CSV in UTF-8, or each language as plain text, one sentence a line"
# By the ending of the name.
OFFICE = {
    ".xlsx": ("an Excel workbook", _SAVE_CELLS),
    ".ods": ("a spreadsheet", _SAVE_CELLS),
    ".docx": ("a Word document", _SAVE_TEXT),
    ".odt": ("an office document", _SAVE_TEXT),
}


# Lines, alone or with what belongs to them.
_Source = TypeVar("_Source")
_Target = TypeVar("_Target")


class Compression(NamedTuple):
    """A format of compressed files."""

    name: str
    mark: bytes  # pattern of the first bytes
    open: Callable[[IO[bytes]], IO[bytes]]


def _open_zstandard(file: IO[bytes]) -> IO[bytes]:
    # Unlike the package zstandard, it notices a file that is cut short.
    pyarrow = package("pyarrow", "corpora")
    return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))


# By the ending of the name. Text may also begin with "BZh".
COMPRESSIONS = {
    ".gz": Compression("gzip", rb"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),  # type: ignore[arg-type, return-value]
    ".bz2": Compression("bzip2", rb"BZh.(1AY&SY|\x17\x72\x45\x38\x50\x90)", bz2.BZ2File),
    ".xz": Compression("xz", rb"\xfd7zXZ\x00", lzma.LZMAFile),
    ".zst": Compression("Zstandard", rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", _open_zstandard),
}


@contextlib.contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for bytes, decompressed if its name ends in .gz, .bz2, .xz or .zst.

    Raises:
        DataError: it cannot be read, or is damaged, which may appear only at its end.
    """
    name = str(path)
    with read_errors(name), path.open("rb") as file:
        compression = COMPRESSIONS.get(path.suffix)
        if compression is None:
            yield file
        elif not re.match(compression.mark, file.peek(16), re.DOTALL):
            what = f"is named {path.suffix} but is not {compression.name}"
            raise DataError(
                name,
                what if file.peek(1) else f"is empty, which no {compression.name} is",
                remedy=f"compress it, or drop {path.suffix} from its name",
            )
        else:
            with compression.open(file) as stream:
                yield stream


def without_compression(path: Path) -> Path:
    """Return the path without the ending of a compression."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, decompressed as its name says.

    An error may appear only at the end, so no result is valid before all lines are read.
    """
    with open_decompressed(path) as stream:
        yield from decode_lines(stream, str(path))


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the decoded lines of a stream as they arrive; `name` is its name in messages."""
    for line in decoded_or_errors(stream, name):
        if isinstance(line, DataError):
            raise line
        yield line


def decoded_or_errors(stream: Iterable[bytes], name: str) -> Iterator[str | DataError]:
    """Yield each line of a stream, or the error of one that is not UTF-8."""
    with read_errors(name):
        for number, line in enumerate(stream, start=1):
            if number == 1:
                reject_archive(line, name)
                if line == BYTE_ORDER_MARK:
                    return
                line = line.removeprefix(BYTE_ORDER_MARK)
            if line.endswith(b"\n"):
                line = line[:-1].removesuffix(b"\r")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                yield not_utf8(line, number, error.start, name)


def zip_lines(
    sources: Iterator[_Source], targets: Iterator[_Target], source: Path, target: Path
) -> Iterator[tuple[_Source, _Target]]:
    """Yield line n of both files; after the last pair, refuse more lines in one of them."""
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


@contextlib.contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Turn errors of reading the file `name` into DataErrors."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(name, "no such file", remedy="name a text that is there") from None
    except IsADirectoryError:
        raise DataError(name, "is a folder", remedy="name a file in it") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(name, "cannot be read", got=error.strerror) from None
        compression = COMPRESSIONS.get(Path(name).suffix)
        what = f"is damaged {compression.name}" if compression else "is damaged"
        remedy = "compress or download it again"
        raise DataError(name, what, got=str(error), remedy=remedy) from None


def reject_archive(first_bytes: bytes, name: str) -> None:
    """Refuse a file that begins as one that is compressed, holds others, or is a document."""
    first_bytes = first_bytes.removeprefix(BYTE_ORDER_MARK)
    for ending, compression in COMPRESSIONS.items():
        if re.match(compression.mark, first_bytes, re.DOTALL):
            remedy = f"let its name end in {ending}, or decompress it"
            raise DataError(name, f"is {compression.name}", remedy=remedy)
    for pattern, kind in _NO_TEXTS.items():
        if re.match(pattern, first_bytes, re.DOTALL):
            what, remedy = OFFICE.get(Path(name).suffix.lower(), kind)
            raise DataError(name, f"is {what}, not plain text", remedy=remedy)


def not_utf8(line: bytes, number: int, error_index: int, name: str) -> DataError:
    """Return the error of a line with a byte at which it is no more UTF-8."""
    if number == 1 and line.startswith(UTF_16_MARKS):
        remedy = "it begins like UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`"
    else:
        remedy = "convert it, from Latin-1 for instance with `iconv -f LATIN1 -t UTF-8`"
    column = len(line[:error_index].decode("utf-8")) + 1
    got = f"byte 0x{line[error_index]:02x} at column {column}"
    return DataError(f"{name}:{number}", "not UTF-8", got=got, remedy=remedy)
