"""Which files are refused as plain text, and which natural texts are not."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tformer_cli.config.schema.data import PlainText
from tformer_cli.corpus.reader import read_beside, read_lines, read_pairs, read_rows
from tformer_cli.errors import DataError

TEXT = b"one\ntwo\nthree\n" * 50
SIDES = "write source and target into two text files, one sentence a line"


def zipped(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("text.en", content)
    return stream.getvalue()


def tarred(content: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        member = tarfile.TarInfo("text.en")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(DataError) as raised:
        read()
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", zipped(TEXT), "is a zip archive, not plain text; unpack it with `unzip`"),
        ("a.en", zipped(TEXT), "is a zip archive, not plain text; unpack it with `unzip`"),
        ("a.xlsx", zipped(TEXT), f"is an Excel workbook, not plain text; open it and {SIDES}"),
        (
            "a.en.bz2",
            bz2.compress(TEXT),
            "is a bzip2 archive, not plain text; unpack it with `bunzip2`",
        ),
        ("a.en.xz", lzma.compress(TEXT), "is an xz archive, not plain text; unpack it with `unxz`"),
        (
            "a.en.zst",
            b"\x28\xb5\x2f\xfd\x04\x58",
            "is a Zstandard archive, not plain text; unpack it with `unzstd`",
        ),
        ("a.tar", tarred(TEXT), "is a tar archive, not plain text; unpack it with `tar -xf`"),
        (
            "a.tar.gz",
            gzip.compress(tarred(TEXT)),
            "is a tar archive, not plain text; unpack it with `tar -xf`",
        ),
    ],
)
def test_archive_is_never_text(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert refusal(lambda: list(read_lines(file))) == f"{file}: {message}"


STRUCTURED = [
    ("a.tmx", '<?xml version="1.0"?>\n<tmx>\n', "TMX"),
    ("a.en", '\n  <?xml version="1.0"?>\n', "XML"),
    ("a.xlf", "<xliff version='1.2'>\n", "XLIFF"),
    ("a.sgm", '<srcset setid="x">\n', "SGML"),
    ("a.jsonl", '{"en": "a", "de": "b"}\n' * 3, "JSON Lines"),
    ("a.txt", '{"translation": {"en": "a"}}\n' * 20, "JSON Lines"),
    ("a.json", '[\n {"en": "a"}\n]\n', "JSON"),
    ("a.csv", "en,de\n" + "a dog,ein Hund\n" * 20, "CSV"),
    ("a.csv", "a dog;ein Hund\n", "CSV"),
    ("a.tsv", "a dog\tein Hund\t1\n" * 5, "TSV"),
    ("a.tsv", "a dog\tein Hund\n", "TSV"),
]


@pytest.mark.parametrize(("name", "content", "kind"), STRUCTURED)
@pytest.mark.parametrize("is_packed", [False, True])
def test_table_or_markup_is_no_corpus(
    tmp_path: Path, name: str, content: str, kind: str, is_packed: bool
) -> None:
    file = tmp_path / (f"{name}.gz" if is_packed else name)
    file.write_bytes(gzip.compress(content.encode()) if is_packed else content.encode())
    other = tmp_path / "other.de"
    other.write_text(content, encoding="utf-8")
    message = f"{file}: is {kind}, not plain text; {SIDES}"
    assert refusal(lambda: list(read_pairs(file, other))) == message
    assert refusal(lambda: list(read_rows(PlainText(text=file)))) == message


@pytest.mark.parametrize(("name", "content", "kind"), STRUCTURED)
def test_what_is_translated_may_be_a_table_or_markup(
    tmp_path: Path, name: str, content: str, kind: str
) -> None:
    file, other = tmp_path / name, tmp_path / "other.de"
    for each in (file, other):
        each.write_text(content, encoding="utf-8")
    lines = content.split("\n")[:-1]
    assert list(read_lines(file)) == lines
    assert list(read_beside(file, other)) == list(zip(lines, lines, strict=True))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.en", "Well, yes, no.\nOne, two, three.\n"),
        ("a.en", "a\tb\tc\nd\te\tf\n"),
        ("a.txt", "a,b,c\nd,e,f\n"),
        ("a.csv", "a line without that\nand, well, one with\n"),
        ("a.tsv", "no tab here\nbut\tthere\n"),
        ("a.en", "<b>bold</b>\n<?php echo 1 ?>\n<tmx-like> text\n"),
        ("a.en", '{"in braces"}\n{"a": 1}\n'),
        ("a.en", "PK is short for pack\nBZh too\n"),
        ("a.en", "BZh9 is a mark\n"),
        ("a.en", "{0} of {1}\n"),
        ("a.json", "a text, whatever its name\n"),
        ("a.csv", ""),
        ("a.xml", "\n\n"),
    ],
)
def test_natural_text_is_read_whatever_marks_it_contains(
    tmp_path: Path, name: str, content: str
) -> None:
    file, other = tmp_path / name, tmp_path / "other.de"
    for each in (file, other):
        each.write_text(content, encoding="utf-8")
    lines = content.split("\n")[:-1]
    assert list(read_pairs(file, other)) == list(zip(lines, lines, strict=True))


def test_markup_below_other_lines_is_text(tmp_path: Path) -> None:
    file = tmp_path / "a.en"
    file.write_text("Some text.\n<?xml version='1.0'?>\n" + '{"a": 1}\n' * 9, encoding="utf-8")
    assert len(list(read_rows(PlainText(text=file)))) == 11


def test_one_file_is_not_source_and_target(tmp_path: Path) -> None:
    file, link, copy = tmp_path / "a.en", tmp_path / "link.de", tmp_path / "copy.de"
    for each in (file, copy):
        each.write_bytes(TEXT)
    link.symlink_to(file)
    for other in (file, link):
        assert refusal(lambda other=other: list(read_pairs(file, other))) == (  # type: ignore[misc]
            f"{other}: is source and target at once; name the file that holds the translations"
        )
    assert len(list(read_pairs(file, copy))) == 150
