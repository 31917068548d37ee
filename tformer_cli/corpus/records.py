"""Pairs of files that hold both sides: tables, JSON Lines, TMX, XLIFF, zips, Parquet and Arrow.

Each format yields records: a pair, or the error of a record that holds none. Files are read as a
stream, so memory does not grow with them. A pair is two lines: line feeds in it become spaces.
"""

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tformer_cli.config.schema.text import PairsFile
from tformer_cli.corpus.archives import (
    ARROW_MARK,
    read_arrow,
    read_parquet,
    read_zip,
    zip_languages,
)
from tformer_cli.corpus.lines import (
    BYTE_ORDER_MARK,
    OFFICE,
    open_decompressed,
    reject_archive,
)
from tformer_cli.corpus.markup import read_tmx, read_xliff, tmx_languages, xliff_languages
from tformer_cli.corpus.tables import (
    Record,
    columns_in,
    csv_rows,
    read_csv,
    read_json_lines,
    read_tsv,
    tsv_rows,
)
from tformer_cli.errors import DataError, Problem, ProblemWarning

# How many skipped records a warning lists.
_LISTED = 5
_READERS: Mapping[str, Callable[[PairsFile], Iterator[Record]]] = {
    "TSV": read_tsv,
    "CSV": read_csv,
    "JSON Lines": read_json_lines,
    "TMX": read_tmx,
    "XLIFF": read_xliff,
    "zip": read_zip,
    "Parquet": read_parquet,
    "Arrow": read_arrow,
}
_LANGUAGES: Mapping[str, Callable[[PairsFile], list[str]]] = {
    "TMX": tmx_languages,
    "XLIFF": xliff_languages,
    "zip": zip_languages,
}
_ENDINGS = {
    ".tsv": "TSV",
    ".tab": "TSV",
    ".csv": "CSV",
    ".jsonl": "JSON Lines",
    ".ndjson": "JSON Lines",
    ".json": "JSON Lines",
    ".tmx": "TMX",
    ".xlf": "XLIFF",
    ".xliff": "XLIFF",
    ".zip": "zip",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
}
# Patterns of their first bytes.
_CONTENTS = {
    rb"PK\x03\x04": "zip",
    rb"PAR1": "Parquet",
    ARROW_MARK + rb"|\xff\xff\xff\xff": "Arrow",
    rb"\s*(<[?!][^>]*>\s*)*<tmx\b": "TMX",
    rb"\s*(<[?!][^>]*>\s*)*<(\w+:)?xliff\b": "XLIFF",
    rb'\s*\{\s*"': "JSON Lines",
    rb"[^\n]*\t": "TSV",
}
_SNIFFED_BYTES = 1 << 12


class SkippedRecordsWarning(ProblemWarning, UserWarning):
    """Records without a pair were skipped, since `on_error` is skip."""


def read_records(text: PairsFile) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a file.

    Raises:
        DataError: the file cannot be read, or a record of it holds no pair and `on_error` is stop.

    Warns:
        SkippedRecordsWarning: at the end, with the number of skipped records and the first ones.
    """
    skipped: list[DataError] = []
    num_skipped = 0
    for record in _READERS[kind_of(text.pairs)](text):
        if not isinstance(record, DataError):
            yield _one_line(record[0]), _one_line(record[1])
        elif text.on_error == "stop":
            raise record
        else:
            num_skipped += 1
            skipped += [record] * (len(skipped) < _LISTED)
    if num_skipped:
        what = "records without a pair were skipped"
        listed = "; ".join(map(str, skipped)) + "; ..." * (num_skipped > len(skipped))
        problem = Problem(str(text.pairs), what, f"{num_skipped:,}", listed)
        warnings.warn(SkippedRecordsWarning(problem), stacklevel=1)


def description_of(text: PairsFile) -> str:
    """Return the format of a file, and of a table of more than two columns those of the pairs."""
    kind = kind_of(text.pairs)
    rows = {"TSV": tsv_rows, "CSV": csv_rows}.get(kind)
    return kind + (columns_in(rows(text), text) if rows else "")


def declared_languages(text: PairsFile) -> list[str]:
    """Return the languages that a file itself names, the source first; none of most formats."""
    languages_of = _LANGUAGES.get(kind_of(text.pairs))
    return languages_of(text) if languages_of else []


def kind_of(path: Path) -> str:
    """Return the format of a file, by the end of its name, else by its first bytes.

    Raises:
        DataError: neither is that of a known format, or it is an office document.
    """
    for ending in itertools.islice(reversed(path.suffixes), 2):
        if ending.lower() in _ENDINGS:
            return _ENDINGS[ending.lower()]
    with open_decompressed(path) as stream:
        head = stream.read(_SNIFFED_BYTES).removeprefix(BYTE_ORDER_MARK)
    for pattern, kind in _CONTENTS.items():
        if re.match(pattern, head, re.DOTALL):
            if path.suffix.lower() in OFFICE:
                # These are zips too.
                reject_archive(head, str(path))
            return kind
    what = f"is not {', '.join(_READERS)}"
    remedy = "name two line-aligned files as `source` and `target`, or correct the ending"
    raise DataError(str(path), what, remedy=remedy)


def _one_line(text: str) -> str:
    if "\n" not in text:
        return text
    lines = (line.strip(" \t\r") for line in text.split("\n"))
    return " ".join(filter(None, lines)).strip()
