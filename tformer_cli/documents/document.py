"""A document: text in segments, and everything around them, which is never changed."""

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tformer_cli.documents.docx import PARAGRAPH_END, docx_entries, read_parts, write_parts
from tformer_cli.documents.html import html_entries
from tformer_cli.documents.jsonl import jsonl_entries
from tformer_cli.documents.po import po_entries
from tformer_cli.documents.segment import Content, Entry, Insertion, Segment
from tformer_cli.documents.srt import srt_entries
from tformer_cli.documents.units import tmx_entries, xliff_entries
from tformer_cli.errors import DataError, UsageError

DOCX = ".docx"
# The segments of a kind of file, by its extension.
PARSERS: dict[str, Callable[[Content], Iterator[Entry | Insertion]]] = {
    DOCX: docx_entries,
    ".htm": html_entries,
    ".html": html_entries,
    ".jsonl": jsonl_entries,
    ".po": po_entries,
    ".srt": srt_entries,
    ".tmx": tmx_entries,
    ".xlf": xliff_entries,
    ".xliff": xliff_entries,
}


class DocumentPart(NamedTuple):
    """A text, and its segments that have letters, in their order."""

    content: Content
    entries: tuple[Entry, ...]
    insertions: tuple[Insertion, ...]

    @property
    def where(self) -> Iterator[str]:
        """The file and the line in which each segment begins."""
        position, line = 0, 1
        for entry in self.entries:
            start = entry.source[0]
            line += self.content.num_ends(position, start)
            position = start
            yield f"{self.content.name}:{line}"

    def translated(self, translations: Iterator[Segment]) -> str:
        """Return the text with the next translations in it."""
        edits = []
        for entry in self.entries:
            translation = next(translations)
            if entry.source != entry.target or translation != entry.segment:
                edits.append((entry.target, entry.encode(translation)))
        if edits:
            edits += [((position, position), text) for position, text in self.insertions]
        parts, position = [], 0
        for (start, end), text in sorted(edits):
            parts += [self.content.text[position:start], text]
            position = end
        return "".join([*parts, self.content.text[position:]])


class Document(NamedTuple):
    """The content of a file, and the text in it: one part, or several of an archive."""

    kind: str  # its extension
    content: bytes
    parts: Mapping[str, DocumentPart]  # by their names in an archive

    @property
    def segments(self) -> list[Segment]:
        """The text of each segment with its inline tags."""
        return [entry.segment for part in self.parts.values() for entry in part.entries]

    @property
    def where(self) -> list[str]:
        """The file and the line in which each segment begins; in an archive, the paragraph."""
        return [where for part in self.parts.values() for where in part.where]

    def translated(self, translations: Iterable[Segment]) -> bytes:
        """Return the file with translations in it; a segment that is unchanged keeps its bytes."""
        rest = iter(translations)
        texts = {name: part.translated(rest) for name, part in self.parts.items()}
        if self.kind == DOCX:
            return write_parts(self.content, texts)
        mark = BOM_UTF8 if self.content.startswith(BOM_UTF8) else b""
        return mark + texts[""].encode()


def is_document(path: Path) -> bool:
    """Whether the extension is that of a document, also before `.gz`."""
    return _extension(path) in PARSERS


def check_same_kind(path: Path, output: Path) -> None:
    """Raise a UsageError if an output is not of the same kind as the document."""
    if PARSERS.get(_extension(output)) != PARSERS.get(_extension(path)):
        what = "must be of the same kind as the document"
        raise UsageError("`output`", what, got=str(output), remedy=f"use {_extension(path)}")


def read_document(
    path: Path,
    *,
    field: str | None = None,
    source_language: str = "en",
    target_language: str = "de",
) -> Document:
    """Read a file of the kind that its extension names, plain or `.gz`.

    Args:
        path: the file.
        field: key of the text in each object of a `.jsonl` file; None for `text`.
        source_language: tag (BCP 47) of the segments, where a file has several languages.
        target_language: tag of the translations, where a file names languages.

    Raises:
        UsageError: the extension is not that of a document, or the kind has no fields.
        DataError: the file cannot be read as that kind.
    """
    kind = _extension(path)
    if kind not in PARSERS:
        remedy = f"use one of {', '.join(PARSERS)}"
        raise UsageError(str(path), "is not a document", remedy=remedy)
    if field is not None and kind != ".jsonl":
        what = "has no effect on this document"
        raise UsageError("`field`", what, got=str(path), remedy="leave it out")
    data, name = _read(path), str(path)
    texts = read_parts(data, name) if kind == DOCX else {"": _decoded(data, name)}
    parts = {}
    for part, text in texts.items():
        content = Content(
            f"{name}/{part}" if part else name,
            text,
            field or "text",
            source_language,
            target_language,
            unit=PARAGRAPH_END if kind == DOCX else "\n",
        )
        items = list(PARSERS[kind](content))
        entries = (item for item in items if isinstance(item, Entry))
        parts[part] = DocumentPart(
            content,
            tuple(entry for entry in entries if _has_letter(entry.segment.text)),
            tuple(item for item in items if isinstance(item, Insertion)),
        )
    return Document(kind, data, parts)


def _extension(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except FileNotFoundError:
        raise DataError(str(path), "no such file", remedy="name a document that is there") from None
    except IsADirectoryError:
        raise DataError(str(path), "is a folder", remedy="name a document in it") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(str(path), "cannot be read as a document", got=str(error)) from None


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError:
        raise DataError(name, "must be UTF-8", remedy="convert the document") from None
