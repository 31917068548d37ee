"""Rows of texts: pairs of parallel text, lines of monolingual text."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tformer_cli.config.schema.text import Bitext, PairsFile, ParallelText, Text, has_phrases
from tformer_cli.corpus.lines import SPLIT_SIDES, read_lines, without_compression, zip_lines
from tformer_cli.corpus.records import description_of, read_records
from tformer_cli.errors import DataError
from tformer_cli.storage.atomic import parse_json

# Rows that show how a text is read.
FIRST_ROWS = 3
_HEAD_LINES = 10
_MARKUP = re.compile(r"\s*<(\?xml|tmx|xliff|srcset|refset|tstset|!DOCTYPE)\b", re.IGNORECASE)
_MARKUP_NAMES = {".tmx": "TMX", ".xlf": "XLIFF", ".xliff": "XLIFF", ".sgm": "SGML"}
_TABLES = {".csv": ("CSV", ",;"), ".tsv": ("TSV", "\t"), ".tab": ("TSV", "\t")}

# A line, alone or with what belongs to it.
_Line = TypeVar("_Line")


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield line n of `source` with line n of `target`; after the last pair, refuse more lines."""
    if source.is_file() and target.is_file() and source.samefile(target):
        remedy = "name the file that holds the translations"
        raise DataError(str(target), "is source and target at once", remedy=remedy)
    return _zip_files(source, target)


def _zip_files(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    return zip_lines(_read_corpus(source), _read_corpus(target), source, target)


def read_beside(lines: Iterator[_Line], file: Path, others: Path) -> Iterator[tuple[_Line, str]]:
    """Yield line n of a file to translate, in any format, with line n of another file."""
    return zip_lines(lines, read_lines(others), file, others)


def read_rows(text: Text) -> Iterator[tuple[str, ...]]:
    """Yield line n of each side of a text: two of parallel text, one of monolingual text."""
    if isinstance(text, PairsFile):
        return read_records(text)
    if isinstance(text, ParallelText):
        # A text of a language into itself may be a single file.
        is_copy = text.source_language is not None and text.source_language == text.target_language
        return (_zip_files if is_copy else read_pairs)(text.source, text.target)
    return ((line,) for line in _read_corpus(text.text))


def read_texts(texts: Iterable[Text]) -> Iterator[tuple[str, str]]:
    """Yield all pairs, text after text; targets of monolingual text are empty."""
    for text in texts:
        for row in read_rows(text):
            yield row if len(row) == 2 else (row[0], "")


def read_nonempty(text: Bitext) -> Iterator[tuple[str, str]]:
    """Yield all pairs of a text.

    Raises:
        DataError: it has none, or cannot be read to its end.
    """
    pair = None
    for pair in read_texts([text]):
        yield pair
    if pair is None:
        raise DataError(str(text.source_file), "no lines", remedy="name a file with text")


def counted(
    pairs: Iterable[tuple[str, str]], on_done: Callable[[int], object]
) -> Iterator[tuple[str, str]]:
    """Yield pairs, and call `on_done` with 1 after each."""
    for pair in pairs:
        yield pair
        on_done(1)


def first_rows(
    texts: Mapping[str, Text], rows_of: Callable[[Text], Iterator[tuple[str, ...]]] = read_rows
) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield what each text is, by its key, and its first rows as `rows_of` reads them."""
    for key, text in texts.items():
        files = ", ".join(map(str, text.files.values()))
        kind = f" ({description_of(text)})" if isinstance(text, PairsFile) else ""
        unit = ", phrase pairs" if has_phrases(text) else ""
        yield f"{key}: {files}{kind}{unit}", list(itertools.islice(rows_of(text), FIRST_ROWS))


def has_pipe(*files: Path | None) -> bool:
    """Return whether a file can be read only once."""
    return any(file is not None and file.is_fifo() for file in files)


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
        is_known = structure in ("TMX", "XLIFF", "JSON Lines", "CSV", "TSV")
        remedy = f"name it alone, as `pairs`, or {SPLIT_SIDES}" if is_known else SPLIT_SIDES
        raise DataError(str(path), f"is {structure}, not plain text", remedy=remedy)
    yield from head
    yield from lines


def _structure(head: Sequence[str], path: Path) -> str | None:
    """Return the format of the first lines of a file, or None for text.

    Text may contain commas and tabs: only a file name ending in .csv or .tsv makes it a table.
    """
    if not head:
        return None
    ending = without_compression(path).suffix.lower()
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
