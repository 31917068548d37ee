"""Records of tables and JSON Lines, whose two fields are chosen by name or by number."""

import csv
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tformer_cli.config.schema.text import PairsFile
from tformer_cli.corpus.lines import (
    BYTE_ORDER_MARK,
    decoded_or_errors,
    not_utf8,
    open_decompressed,
    reject_archive,
)
from tformer_cli.errors import DataError, has_surrogate
from tformer_cli.storage.atomic import parse_json
from tformer_cli.text.language import choose_languages, is_language_code

# A pair, or the error of a record that holds none.
Record = tuple[str, str] | DataError
# Where a record is, and its cells or its JSON object.
_Row = tuple[str, Sequence[str]]
_Object = tuple[str, Mapping[str, object]]

_QUOTED = re.compile(rb'"[^"]*"')
_COLUMN = re.compile("[1-9][0-9]{0,8}")
_OBJECTS = "write an object a line, as `jq -c '.[]'` does of a list"
# Characters of a line that a message shows.
_SHOWN = 40

# Names of both fields, tried after the languages.
_SIDE_NAMES = (("source", "target"), ("src", "tgt"), ("src", "trg"))


def read_tsv(text: PairsFile) -> Iterator[Record]:
    """Yield the records of lines whose cells are separated by tabs; quotes are text."""
    yield from _columns(tsv_rows(text), text)


def read_csv(text: PairsFile) -> Iterator[Record]:
    """Yield the records of a CSV file (RFC 4180) with commas, semicolons or tabs."""
    yield from _columns(csv_rows(text), text)


def tsv_rows(text: PairsFile) -> Iterator[_Row | DataError]:
    """Yield where each line with text is, and its cells, or its error."""
    for row in _lines(text):
        yield row if isinstance(row, DataError) else (row[0], row[1].split("\t"))


def csv_rows(text: PairsFile) -> Iterator[_Row | DataError]:
    """Yield where each record of a CSV file is, and its cells, or its error."""
    name = str(text.pairs)
    with open_decompressed(text.pairs) as stream:
        first = next(stream, b"").removeprefix(BYTE_ORDER_MARK)
        reject_archive(first, name)
        raw = itertools.chain([first], stream)
        lines = _RecordLines(line.decode("utf-8", "surrogateescape") for line in raw)
        delimiter = max((b",", b";", b"\t"), key=_QUOTED.sub(b"", first).count)
        yield from _csv_rows(lines, delimiter.decode(), name)


def columns_in(rows: Iterable[_Row | DataError], text: PairsFile) -> str:
    """Return which columns of a table hold the pairs; nothing if it has no others."""
    where, cells = next((row for row in rows if not isinstance(row, DataError)), ("", ()))
    if len(cells) <= 2:
        return ""
    (source, target), _ = _chosen_columns(where, cells, text)
    return f", columns {source + 1} and {target + 1} of {len(cells)}"


def read_json_lines(text: PairsFile) -> Iterator[Record]:
    """Yield the records of a file with one JSON object a line."""
    rows = _lines(text)
    objects = (row if isinstance(row, DataError) else _json_object(*row) for row in rows)
    return choose_fields(objects, text)


def choose_fields(objects: Iterable[_Object | DataError], text: PairsFile) -> Iterator[Record]:
    """Yield two fields of each object: those of the first candidates that it has."""
    candidates = _candidates(text)
    for item in objects:
        if isinstance(item, DataError):
            yield item
            continue
        where, value = item
        for paths in candidates:
            source, target = (_at(value, path) for path in paths)
            if isinstance(source, str) and isinstance(target, str):
                # All records have the same fields.
                candidates = [paths]
                yield _encodable(source, target, where)
                break
        else:
            what = f"has no text at {' and '.join(candidates[0])}"
            remedy = "set `source_field` and `target_field`, such as translation.en"
            yield DataError(where, what, got=", ".join(value) or "no keys", remedy=remedy)


def top_keys(text: PairsFile) -> set[str]:
    """Return the keys of an object at or below which the fields can be."""
    paths = {path for paths in _candidates(text) for path in paths}
    return paths | {path.partition(".")[0] for path in paths}


def _lines(text: PairsFile) -> Iterator[tuple[str, str] | DataError]:
    """Yield where each line with text is, and the line, or its error."""
    with open_decompressed(text.pairs) as stream:
        for number, line in enumerate(decoded_or_errors(stream, str(text.pairs)), start=1):
            if isinstance(line, DataError):
                yield line
            elif line:
                yield f"{text.pairs}:{number}", line


class _RecordLines:
    """The lines of a CSV file, and those that the record has which is being read."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.lines = lines
        self.again: deque[str] = deque()
        self.record: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.again.popleft() if self.again else next(self.lines)
        self.record.append(line)
        return line

    def end_record(self, num_lines: int) -> None:
        """Let the next record begin after some lines of this one."""
        self.again.extendleft(reversed(self.record[num_lines:]))
        self.record.clear()


def _csv_rows(lines: _RecordLines, delimiter: str, name: str) -> Iterator[_Row | DataError]:
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    while True:
        where = f"{name}:{number}"
        try:
            row: list[str] | DataError = next(rows)
            num_lines = len(lines.record)
        except StopIteration:
            return
        except csv.Error as error:
            remedy = (
                "close each quote, double one within a cell, and quote a cell with a line break"
            )
            # Advice to a programmer may come after the dash.
            problem = str(error).partition(" - ")[0]
            row = DataError(where, "is not CSV", got=problem, remedy=remedy)
            # An open quote takes the lines of other records with it.
            num_lines = 1
        if any(map(has_surrogate, lines.record[:num_lines])):
            yield _not_utf8(lines.record, number, name)
        elif isinstance(row, DataError):
            yield row
        elif row:
            yield where, row
        number += num_lines
        lines.end_record(num_lines)


def _not_utf8(record: Iterable[str], number: int, name: str) -> DataError:
    """Return the error of a record whose lines, from some number on, are not all UTF-8."""
    number, line = next(pair for pair in enumerate(record, number) if has_surrogate(pair[1]))
    valid = "".join(itertools.takewhile(lambda character: not has_surrogate(character), line))
    return not_utf8(line.encode("utf-8", "surrogateescape"), number, len(valid.encode()), name)


def _columns(rows: Iterable[_Row | DataError], text: PairsFile) -> Iterator[Record]:
    """Yield two columns of the rows, of which none has more than the first.

    A text with a separator in it would move what follows to other columns.
    """
    columns: tuple[int, int] | None = None
    num_columns = 0
    for row in rows:
        if isinstance(row, DataError):
            yield row
            continue
        where, cells = row
        if columns is None:
            columns, is_header = _chosen_columns(where, cells, text)
            num_columns = len(cells)
            if is_header:
                continue
        if len(cells) > num_columns:
            what = "has more columns than the first record"
            got = f"{len(cells)} and {num_columns}"
            yield DataError(where, what, got=got, remedy="is a separator within a text?")
        elif max(columns) < len(cells):
            yield cells[columns[0]], cells[columns[1]]
        else:
            what = f"has no column {max(columns) + 1}"
            yield DataError(where, what, got=f"{len(cells)} in all")


def _chosen_columns(
    where: str, cells: Sequence[str], text: PairsFile
) -> tuple[tuple[int, int], bool]:
    """Return the columns of both sides, and whether the first row names them."""
    names = [cell.strip().lower() for cell in cells]
    for source, target in _candidates(text):
        if source.lower() in names and target.lower() in names:
            return (names.index(source.lower()), names.index(target.lower())), True
    if text.languages is not None and text.source_field is None:
        # `en-GB` or `eng` for `en`, and the other way round.
        codes = [name for name in names if is_language_code(name)]
        first, second = choose_languages(codes, text.languages)
        if first and second and first != second:
            return (names.index(first), names.index(second)), True
    fields = text.source_field or "1", text.target_field or "2"
    if not all(map(_COLUMN.fullmatch, fields)):
        what = f"names no columns {' and '.join(fields)}"
        remedy = "write names of columns, or their numbers from 1"
        raise DataError(where, what, got=", ".join(cells), remedy=remedy)
    return (int(fields[0]) - 1, int(fields[1]) - 1), False


def _candidates(text: PairsFile) -> list[tuple[str, str]]:
    """Return the fields to look for, in their order."""
    if text.source_field is not None and text.target_field is not None:
        return [(text.source_field, text.target_field)]
    if text.languages is None:
        return list(_SIDE_NAMES)
    source, target = text.languages
    return [(source, target), (f"translation.{source}", f"translation.{target}"), *_SIDE_NAMES]


def _json_object(where: str, line: str) -> _Object | DataError:
    try:
        value = parse_json(line)
    except ValueError as error:
        got = str(error).partition(": line 1")[0].removesuffix(" at")
        return DataError(where, "is not JSON", got=got, remedy=_OBJECTS)
    if not isinstance(value, dict):
        got = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
        return DataError(where, "is not a JSON object", got=got, remedy=_OBJECTS)
    return where, value


def _at(value: object, path: str) -> object:
    """Return what is at a key path such as `translation.en`."""
    if isinstance(value, Mapping) and path in value:
        return value[path]
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _encodable(source: str, target: str, where: str) -> Record:
    if has_surrogate(source) or has_surrogate(target):
        return DataError(where, "has half of a surrogate pair, which is no character")
    return source, target
