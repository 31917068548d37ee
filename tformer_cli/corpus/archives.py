"""Records of zips with two line-aligned files, and of Parquet and Arrow files."""

import contextlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from tformer_cli.config.schema.text import PairsFile
from tformer_cli.corpus.lines import decoded_or_errors, read_errors, zip_lines
from tformer_cli.corpus.tables import Record, choose_fields, top_keys
from tformer_cli.errors import DataError
from tformer_cli.extras import package
from tformer_cli.text.language import language_of_name

# The first bytes of an Arrow file, which has its batches listed at the end; a stream has none.
ARROW_MARK = b"ARROW1\0\0"


def read_zip(text: PairsFile) -> Iterator[Record]:
    """Yield the records of a zip as of OPUS: two files, each with the ending of a language."""
    path = text.pairs
    with _zip_errors(path), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = [_member(archive, path, code) for code in text.languages or ("source", "target")]
        names = [path / member for member in members]
        with archive.open(members[0]) as source, archive.open(members[1]) as target:
            streams = zip((source, target), names, strict=True)
            sides = [decoded_or_errors(stream, str(name)) for stream, name in streams]
            for pair in zip_lines(sides[0], sides[1], *names):
                first, second = pair
                if isinstance(first, DataError) or isinstance(second, DataError):
                    yield first if isinstance(first, DataError) else second  # type: ignore[misc]
                else:
                    yield first, second


def zip_languages(text: PairsFile) -> list[str]:
    """Return the languages with which the names of files in a zip end."""
    with _zip_errors(text.pairs), zipfile.ZipFile(text.pairs) as archive:
        endings = (PurePath(name).suffix[1:] for name in _file_names(archive))
        return [ending for ending in endings if language_of_name(Path(f".{ending}"))]


def read_parquet(text: PairsFile) -> Iterator[Record]:
    """Yield the records of a Parquet file."""
    package("pyarrow", "corpora")
    parquet = import_module("pyarrow.parquet")
    with _arrow_errors(text.pairs), parquet.ParquetFile(text.pairs) as file:
        yield from choose_fields(_rows(file.iter_batches(1024), text), text)


def read_arrow(text: PairsFile) -> Iterator[Record]:
    """Yield the records of an Arrow file, or of a stream as Hugging Face datasets are saved."""
    pyarrow = package("pyarrow", "corpora")
    with _arrow_errors(text.pairs), pyarrow.memory_map(str(text.pairs)) as file:
        is_file = file.read(len(ARROW_MARK)) == ARROW_MARK
        file.seek(0)
        if is_file:
            reader = pyarrow.ipc.open_file(file)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            batches = pyarrow.ipc.open_stream(file)
        yield from choose_fields(_rows(batches, text), text)


def _rows(
    batches: Iterable[Any], text: PairsFile
) -> Iterator[tuple[str, Mapping[str, object]] | DataError]:
    """Yield where each row is, and its values by column: None of columns that hold no side."""
    number, read = 0, top_keys(text)
    for batch in batches:
        names = batch.schema.names
        # Other columns may have values that Python has not, such as nanoseconds.
        needed = batch.select([i for i, name in enumerate(names) if name in read])
        needed.validate()
        for column in needed.columns:
            _check_memory(column)
        for row in _converted(needed):
            number += 1
            where = f"{text.pairs}:{number}"
            if isinstance(row, UnicodeDecodeError):
                got = f"byte 0x{row.object[row.start]:02x}"
                yield DataError(where, "not UTF-8", got=got, remedy="write its columns in UTF-8")
            else:
                yield where, dict.fromkeys(names) | row


def _check_memory(array: Any) -> None:
    """Refuse texts that reach beyond the memory of an array, as a damaged file may have them."""
    types = package("pyarrow", "corpora").types
    if types.is_struct(array.type):
        for child in array.flatten():
            _check_memory(child)
    elif types.is_string(array.type):
        # Which of them are UTF-8 is seen row by row.
        array.view("binary").validate(full=True)
    elif types.is_large_string(array.type):
        array.view("large_binary").validate(full=True)
    else:
        array.validate(full=True)


def _converted(batch: Any) -> list[dict[str, object] | UnicodeDecodeError]:
    """Return the rows of a batch, or the error of one that is not UTF-8."""
    try:
        rows: list[dict[str, object] | UnicodeDecodeError] = batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            return [error]
        return [row for i in range(batch.num_rows) for row in _converted(batch.slice(i, 1))]
    return rows


def _file_names(archive: zipfile.ZipFile) -> list[str]:
    """Return the files of a zip, without those in which macOS describes others."""
    return [
        name for name in archive.namelist() if not name.endswith("/") and "__MACOSX/" not in name
    ]


def _member(archive: zipfile.ZipFile, path: Path, language: str) -> str:
    """Return the only file of a zip whose name ends in a language."""
    names = _file_names(archive)
    ending = f".{language.lower()}"
    matches = [name for name in names if PurePath(name).suffix.lower() == ending]
    if len(matches) != 1:
        got = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        what = f"must hold one file whose name ends in {ending}"
        raise DataError(str(path), what, got=got or "no files")
    return matches[0]


@contextlib.contextmanager
def _zip_errors(path: Path) -> Iterator[None]:
    try:
        with read_errors(str(path)):
            yield
    except (zipfile.BadZipFile, RuntimeError, ValueError) as error:
        what = "is a damaged or encrypted zip"
        raise DataError(str(path), what, got=str(error), remedy="download it again") from None


@contextlib.contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    arrow_error = package("pyarrow", "corpora").ArrowException
    try:
        with read_errors(str(path)):
            yield
    except (arrow_error, ValueError) as error:
        raise DataError(str(path), "is damaged", got=str(error).split("\n")[0]) from None
