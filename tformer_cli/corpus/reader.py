"""Text files: lines in UTF-8, plain or gzip; other formats are rejected; checksums.

A line ends at LF, optionally after CR, and nowhere else; a last line without LF counts. So all
readers agree on the number of lines, and parallel files stay parallel.
"""

import contextlib
import gzip
import itertools
import json
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tformer_cli.config.schema.data import ParallelText, Text
from tformer_cli.errors import DataError
from tformer_cli.storage.atomic import file_checksum, parse_json, read_json, write_text

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MARK = b"\x1f\x8b"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")

_HEAD_LINES = 10
_SPLIT_SIDES = "write source and target into two text files, one sentence a line"
# Patterns of their first bytes. Text may also begin with "BZh".
_ARCHIVES = {
    rb".{257}ustar": ("a tar archive", "unpack it with `tar -xf`"),
    rb"PK\x03\x04": ("a zip archive", "unpack it with `unzip`"),
    rb"BZh.(1AY&SY|\x17\x72\x45\x38\x50\x90)": ("a bzip2 archive", "unpack it with `bunzip2`"),
    rb"\xfd7zXZ\x00": ("an xz archive", "unpack it with `unxz`"),
    rb"\x28\xb5\x2f\xfd": ("a Zstandard archive", "unpack it with `unzstd`"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "unpack it with `7z x`"),
}
_OFFICE = {
    ".xlsx": ("an Excel workbook", f"open it and {_SPLIT_SIDES}"),
    ".ods": ("a spreadsheet", f"open it and {_SPLIT_SIDES}"),
    ".docx": ("a Word document", "save it as plain text, one sentence a line"),
    ".odt": ("an office document", "save it as plain text, one sentence a line"),
}
_MARKUP = re.compile(r"\s*<(\?xml|tmx|xliff|srcset|refset|tstset|!DOCTYPE)\b", re.IGNORECASE)
_MARKUP_NAMES = {".tmx": "TMX", ".xlf": "XLIFF", ".xliff": "XLIFF", ".sgm": "SGML"}
_TABLES = {".csv": ("CSV", ",;"), ".tsv": ("TSV", "\t"), ".tab": ("TSV", "\t")}

# File of cached checksums.
TEXTS_FILE = "texts.json"
# A file modified this recently may change again without a new modification time.
SETTLED_NS = 2_000_000_000

# A line, alone or with what belongs to it.
_Line = TypeVar("_Line")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, decompressed if it is named `.gz`.

    An error may appear only at the end, so no result is valid before all lines are read.
    """
    name = str(path)
    with _read_errors(name), path.open("rb") as file:
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
    """Yield the decoded lines of a stream as they arrive; `name` is its name in messages."""
    with _read_errors(name):
        for number, line in enumerate(stream, start=1):
            if number == 1:
                _reject_archive(line, name)
                if line == BYTE_ORDER_MARK:
                    return
                line = line.removeprefix(BYTE_ORDER_MARK)
            if line.endswith(b"\n"):
                line = line[:-1].removesuffix(b"\r")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(line, number, error.start, name) from None


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield line n of `source` with line n of `target`; after the last pair, refuse more lines."""
    if source.is_file() and target.is_file() and source.samefile(target):
        remedy = "name the file that holds the translations"
        raise DataError(str(target), "is source and target at once", remedy=remedy)
    return _zip_lines(_read_corpus(source), _read_corpus(target), source, target)


def read_beside(lines: Iterator[_Line], file: Path, others: Path) -> Iterator[tuple[_Line, str]]:
    """Yield line n of a file to translate, in any format, with line n of another file."""
    return _zip_lines(lines, read_lines(others), file, others)


def read_rows(text: Text) -> Iterator[tuple[str, ...]]:
    """Yield line n of each side of a text: two of parallel text, one of monolingual text."""
    if isinstance(text, ParallelText):
        return read_pairs(text.source, text.target)
    return ((line,) for line in _read_corpus(text.text))


def read_texts(texts: Iterable[Text]) -> Iterator[tuple[str, str]]:
    """Yield all pairs, text after text; targets of monolingual text are empty."""
    for text in texts:
        for row in read_rows(text):
            yield row if len(row) == 2 else (row[0], "")


def has_pipe(*files: Path | None) -> bool:
    """Return whether a file can be read only once."""
    return any(file is not None and file.is_fifo() for file in files)


def text_checksums(texts: Sequence[Path], stores: Path) -> list[str]:
    """Return the SHA-256 of each file, cached in `stores` by path, size and modification time."""
    cache_file = stores / TEXTS_FILE
    cache: dict[str, list[int | str]] = {}
    # Of a missing or damaged file, nothing is cached.
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        cache = {
            name: [size, changed_ns, checksum]
            for name, (size, changed_ns, checksum) in read_json(cache_file).items()
        }
    updated = dict(cache)
    checksums = []
    for text in texts:
        name = str(text.resolve())
        try:
            status = text.stat()
            state = [status.st_size, status.st_mtime_ns]
            is_known = updated.get(name, [])[:2] == state
            checksum = str(updated[name][2]) if is_known else file_checksum(text)
        except OSError as error:
            raise DataError(str(text), "cannot be read", got=error.strerror) from None
        checksums.append(checksum)
        if time.time_ns() - status.st_mtime_ns > SETTLED_NS:
            updated[name] = [*state, checksum]
    if updated != cache:
        # In ASCII, since file names need not be UTF-8.
        write_text(cache_file, json.dumps(updated, indent=2) + "\n")
    return checksums


def text_changed(where: str) -> DataError:
    """Return the error of a text that is read twice and differs."""
    what = "the text changed while it was read"
    return DataError(where, what, remedy="run the same command again")


def _read_corpus(path: Path) -> Iterator[str]:
    """Yield the lines of a corpus file, unless they are a table or markup."""
    lines = read_lines(path)
    head = list(itertools.islice(lines, _HEAD_LINES))
    structure = _structure([line for line in head if line.strip()], path)
    if structure is not None:
        raise DataError(str(path), f"is {structure}, not plain text", remedy=_SPLIT_SIDES)
    yield from head
    yield from lines


def _zip_lines(
    sources: Iterator[_Line], targets: Iterator[str], source: Path, target: Path
) -> Iterator[tuple[_Line, str]]:
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


def _reject_archive(first_bytes: bytes, name: str) -> None:
    for pattern, archive in _ARCHIVES.items():
        if re.match(pattern, first_bytes, re.DOTALL):
            what, remedy = _OFFICE.get(Path(name).suffix.lower(), archive)
            raise DataError(name, f"is {what}, not plain text", remedy=remedy)


def _structure(head: Sequence[str], path: Path) -> str | None:
    """Return the format of the first lines of a file, or None for text.

    Text may contain commas and tabs: only a file name ending in .csv or .tsv makes it a table.
    """
    if not head:
        return None
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if _MARKUP.match(head[0]):
        return _MARKUP_NAMES.get(ending, "XML")
    if all(map(_is_json_object, head)):
        return "JSON Lines"
    if ending == ".json" and head[0].lstrip()[0] in "[{":
        return "JSON"
    if ending in _TABLES:
        table, separators = _TABLES[ending]
        if all(any(mark in line for mark in separators) for line in head):
            return table
    return None


def _is_json_object(line: str) -> bool:
    if not line.lstrip().startswith('{"'):
        return False
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


@contextlib.contextmanager
def _read_errors(name: str) -> Iterator[None]:
    """Turn errors of reading the file `name` into DataErrors."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        remedy = "compress or download it again"
        raise DataError(name, "is damaged gzip", got=str(error), remedy=remedy) from None
    except FileNotFoundError:
        raise DataError(name, "no such file", remedy="name a text that is there") from None
    except IsADirectoryError:
        raise DataError(name, "is a folder", remedy="name a file in it") from None
    except OSError as error:
        raise DataError(name, "cannot be read", got=error.strerror) from None


def _not_utf8(line: bytes, number: int, error_index: int, name: str) -> DataError:
    if number == 1 and line.startswith(GZIP_MARK):
        return DataError(name, "is gzip", remedy="let its name end in .gz, or decompress it")
    if number == 1 and line.startswith(UTF_16_MARKS):
        remedy = "it begins like UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`"
    else:
        remedy = "convert it, from Latin-1 for instance with `iconv -f LATIN1 -t UTF-8`"
    column = len(line[:error_index].decode("utf-8")) + 1
    got = f"byte 0x{line[error_index]:02x} at column {column}"
    return DataError(f"{name}:{number}", "not UTF-8", got=got, remedy=remedy)
