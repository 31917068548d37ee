"""Files that are not plain text: archives by their first bytes, tables and markup by their lines.

Text that merely contains commas, tabs or tags stays text: a table needs its file name ending too.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tformer_cli.errors import DataError
from tformer_cli.json_text import parse_json

GZIP_MARK = b"\x1f\x8b"

_NUM_HEAD_LINES = 10
_SIDES = "write source and target into two text files, one sentence a line"
_ARCHIVES = {
    b"PK\x03\x04": ("a zip archive", "unpack it with `unzip`"),
    b"BZh": ("a bzip2 archive", "unpack it with `bunzip2`"),
    b"\xfd7zXZ\x00": ("an xz archive", "unpack it with `unxz`"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard archive", "unpack it with `unzstd`"),
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "unpack it with `7z x`"),
}
# What follows "BZh" and a digit in every bzip2 file: text may begin with those letters.
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
_OFFICE = {
    ".xlsx": ("an Excel workbook", f"open it and {_SIDES}"),
    ".ods": ("a spreadsheet", f"open it and {_SIDES}"),
    ".docx": ("a Word document", "save it as plain text, one sentence a line"),
    ".odt": ("an office document", "save it as plain text, one sentence a line"),
}
_TAR_MARK, _TAR_OFFSET = b"ustar", 257
_MARKUP = re.compile(r"\s*<(\?xml|tmx|xliff|srcset|refset|tstset|!DOCTYPE)\b", re.IGNORECASE)
_MARKUP_NAMES = {".tmx": "TMX", ".xlf": "XLIFF", ".xliff": "XLIFF", ".sgm": "SGML"}
_SEPARATORS = {".csv": ("CSV", ",;"), ".tsv": ("TSV", "\t"), ".tab": ("TSV", "\t")}


def reject_archive(first_bytes: bytes, name: str) -> None:
    """Make sure that a stream is no archive.

    Args:
        first_bytes: what the stream begins with.
        name: of the stream, for messages.

    Raises:
        DataError: it is one.
    """
    archive = _archive(first_bytes)
    if archive is not None:
        what, remedy = _OFFICE.get(Path(name).suffix.lower(), archive)
        raise DataError(name, f"is {what}, not plain text", remedy=remedy)


def plain_text(lines: Iterator[str], path: Path) -> Iterator[str]:
    """Yield the lines of a corpus file, unless they are a table or markup.

    Args:
        lines: all lines of the file.
        path: its name, whose ending counts.

    Raises:
        DataError: the file is CSV, TSV, JSON or XML.
    """
    head = list(itertools.islice(lines, _NUM_HEAD_LINES))
    kind = _structure([line for line in head if line.strip()], path)
    if kind is not None:
        raise DataError(str(path), f"is {kind}, not plain text", remedy=_SIDES)
    yield from head
    yield from lines


def _archive(first_bytes: bytes) -> tuple[str, str] | None:
    """Return what kind of archive begins with these bytes, and how to unpack it."""
    if first_bytes[_TAR_OFFSET:].startswith(_TAR_MARK):
        return "a tar archive", "unpack it with `tar -xf`"
    if first_bytes.startswith(b"BZh") and not first_bytes[4:].startswith(_BZIP2_BLOCKS):
        return None
    return next((found for mark, found in _ARCHIVES.items() if first_bytes.startswith(mark)), None)


def _structure(head: Sequence[str], path: Path) -> str | None:
    """Return the format that the first lines of a file are written in, or None for text."""
    if not head:
        return None
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if _MARKUP.match(head[0]):
        return _MARKUP_NAMES.get(ending, "XML")
    if all(map(_is_json_object, head)):
        return "JSON Lines"
    if ending == ".json" and head[0].lstrip()[0] in "[{":
        return "JSON"
    if ending in _SEPARATORS:
        kind, separators = _SEPARATORS[ending]
        if all(any(mark in line for mark in separators) for line in head):
            return kind
    return None


def _is_json_object(line: str) -> bool:
    if not line.lstrip().startswith('{"'):
        return False
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False
