"""Reading lines: what ends one, what is refused, that none is lost."""

import errno
import gzip
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.text import ParallelText, PlainText
from tformer_cli.corpus.lines import decode_lines, read_lines
from tformer_cli.corpus.reader import (
    read_beside,
    read_pairs,
    read_rows,
    read_texts,
)
from tformer_cli.errors import DataError

FIVE = b"one\ntwo\nthree\nfour\nfive\n"
LATIN_REMEDY = "convert it, from Latin-1 for instance with `iconv -f LATIN1 -t UTF-8`"


def lines_of(content: bytes) -> list[str]:
    return list(decode_lines(io.BytesIO(content), "<stdin>"))


def written(folder: Path, name: str, content: bytes) -> Path:
    file = folder / name
    file.write_bytes(content)
    return file


def refusal(file: Path) -> str:
    with pytest.raises(DataError) as caught:
        list(read_lines(file))
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\n\n\n", ["", "", "", ""]),
        (b"a", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb\nc\r\n", ["a", "b", "c"]),
        (b"\r\n\r\n", ["", ""]),
        (b"a\rb\nc\n", ["a\rb", "c"]),
        (b"a\r\r\nb\r", ["a\r", "b\r"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (b"a\0b\n\0\n", ["a\0b", "\0"]),
        (b" a \n\t\n\xc2\xa0\n", [" a ", "\t", "\u00a0"]),
        ("\u200b\n\u2060\n".encode(), ["\u200b", "\u2060"]),
    ],
)
def test_lines_end_at_line_feeds(content: bytes, lines: list[str]) -> None:
    assert lines_of(content) == lines


@pytest.mark.parametrize("separator", list("\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r"))
def test_lines_end_nowhere_else(separator: str) -> None:
    assert lines_of(f"a{separator}b\nc\n".encode()) == [f"a{separator}b", "c"]


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n\r\ufeff"))))
def test_lines_written_are_the_lines_read(lines: list[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    assert lines_of(content) == lines
    assert lines_of(content.replace(b"\n", b"\r\n")) == lines


def test_lines_come_while_the_pipe_is_open() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as pipe:
        lines = decode_lines(stream, "<stdin>")
        for text in ("one", "two"):
            pipe.write(f"{text}\n".encode())
            assert next(lines) == text


@pytest.mark.parametrize(
    ("content", "line", "byte", "column"),
    [
        (b"a\nb\nok \xff\xfe\x80\n", 3, "0xff", 4),
        ("a\nä müde\n".encode("latin-1"), 2, "0xe4", 1),
        ("ä漢".encode() + b"\xfc\n", 1, "0xfc", 3),
        (b"a\nb \xc0\xaf\n", 2, "0xc0", 3),
        (b"a\n\xed\xa0\x80\xed\xb0\x80\n", 2, "0xed", 1),
        (b"a\nb\ncut \xc3", 3, "0xc3", 5),
        (b"fine\n" * 10_000 + b"late \xfe\n", 10_001, "0xfe", 6),
        (b"\xef\xbb\xbfa\xff\n", 1, "0xff", 2),
    ],
)
def test_line_that_is_not_utf8_is_named(content: bytes, line: int, byte: str, column: int) -> None:
    with pytest.raises(DataError) as caught:
        lines_of(content)
    assert str(caught.value) == (
        f"<stdin>:{line}: not UTF-8 (byte {byte} at column {column}); {LATIN_REMEDY}"
    )


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_recognised(encoding: str, tmp_path: Path) -> None:
    file = written(tmp_path, "a.en", "\ufeffhello\n".encode(encoding))
    byte = file.read_bytes()[0]
    assert refusal(file) == (
        f"{file}:1: not UTF-8 (byte 0x{byte:02x} at column 1); "
        "it begins like UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`"
    )


def test_gzip_reads_like_the_plain_file(tmp_path: Path) -> None:
    plain = written(tmp_path, "a.en", b"\xef\xbb\xbf" + FIVE + b"last")
    packed = written(tmp_path, "a.en.gz", gzip.compress(plain.read_bytes()))
    assert list(read_lines(packed)) == list(read_lines(plain))
    assert len(list(read_lines(packed))) == 6


def test_gzip_members_are_one_text(tmp_path: Path) -> None:
    content = gzip.compress(b"one\ntw") + gzip.compress(b"o\nthree\n")
    assert list(read_lines(written(tmp_path, "a.gz", content))) == ["one", "two", "three"]


def test_gzip_of_nothing_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(written(tmp_path, "a.gz", gzip.compress(b"")))) == []


PACKED = gzip.compress(FIVE, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            PACKED[:-9],
            "is damaged gzip (Compressed file ended before the end-of-stream marker was "
            "reached); compress or download it again",
        ),
        (
            PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:],
            f"is damaged gzip (CRC check failed 0x0 != {zlib.crc32(FIVE):#x}); "
            "compress or download it again",
        ),
        (
            PACKED[:10] + b"\xff" + PACKED[11:],
            "is damaged gzip (Error -3 while decompressing data: invalid block type); "
            "compress or download it again",
        ),
        (
            PACKED + b"garbage",
            "is damaged gzip (Not a gzipped file (b'ga')); compress or download it again",
        ),
        (FIVE, "is named .gz but is not gzip; compress it, or drop .gz from its name"),
        (b"", "is empty, which no gzip is; compress it, or drop .gz from its name"),
    ],
    ids=["cut", "checksum", "block", "garbage", "plain", "empty"],
)
def test_gzip_that_is_damaged_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    file = written(tmp_path, "a.en.gz", content)
    assert refusal(file) == f"{file}: {message}"


def test_gzip_without_its_suffix_is_recognised(tmp_path: Path) -> None:
    file = written(tmp_path, "a.en", PACKED)
    assert refusal(file) == f"{file}: is gzip; let its name end in .gz, or decompress it"


def test_file_that_is_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "no.en"
    assert refusal(file) == f"{file}: no such file; name a text that is there"
    packed = tmp_path / "no.en.gz"
    assert refusal(packed) == f"{packed}: no such file; name a text that is there"


def test_folder_is_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: is a folder; name a file in it"


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    loop = tmp_path / "loop.en"
    loop.symlink_to(loop)
    assert refusal(loop) == f"{loop}: cannot be read (Too many levels of symbolic links)"


def test_stream_that_breaks_is_named() -> None:
    class Broken(io.BytesIO):
        def __next__(self) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(DataError) as caught:
        list(decode_lines(Broken(), "<stdin>"))
    assert str(caught.value) == "<stdin>: cannot be read (Input/output error)"


@pytest.mark.parametrize("name", ["with space ü 漢.en", "-71.en", "a.en"])
def test_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    assert len(list(read_lines(written(tmp_path, name, FIVE)))) == 5


def test_message_moves_no_cursor(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path / "a\x1b[31m\nü.en")
        == f"{tmp_path}/a\\x1b[31m\\nü.en: no such file; name a text that is there"
    )


@given(st.lists(st.text(alphabet="ab \r\u2028"), max_size=9))
def test_pairs_are_lines_side_by_side(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    content = "".join(f"{line}\n" for line in lines)
    folder = tmp_path_factory.mktemp("pairs")
    source = written(folder, "a.en", content.encode())
    target = written(folder, "a.de.gz", gzip.compress(content.upper().encode()))
    pairs = list(read_pairs(source, target))
    assert [source for source, _ in pairs] == list(read_lines(source))
    assert [target for _, target in pairs] == list(read_lines(target))


@pytest.mark.parametrize(("num_source", "num_target"), [(10, 9), (5, 1), (1, 5), (0, 3), (2, 0)])
def test_pairs_of_unequal_files_are_refused_at_the_end_of_the_shorter(
    num_source: int, num_target: int, tmp_path: Path
) -> None:
    source = written(tmp_path, "a.en", b"x\n" * num_source)
    target = written(tmp_path, "a.de", b"y\n" * num_target)
    shortest, longest = sorted((num_source, num_target))
    longer, shorter = (source, target) if num_source > num_target else (target, source)
    pairs = read_pairs(source, target)
    assert [next(pairs) for _ in range(shortest)] == [("x", "y")] * shortest
    with pytest.raises(DataError) as caught:
        next(pairs)
    assert str(caught.value) == (
        f"{longer}:{shortest + 1}: has no counterpart in {shorter} "
        f"({longest} and {shortest} lines); "
        "line n of one file must translate line n of the other"
    )


def test_rows_have_the_sides_of_their_text(tmp_path: Path) -> None:
    source, target = written(tmp_path, "s", b"a\nb\n"), written(tmp_path, "t", b"c\nd\n")
    text, alone = ParallelText(source=source, target=target), PlainText(text=source)
    assert list(read_rows(text)) == list(read_texts([text])) == [("a", "c"), ("b", "d")]
    assert list(read_rows(alone)) == [("a",), ("b",)]
    assert list(read_texts([alone, text])) == [("a", ""), ("b", ""), ("a", "c"), ("b", "d")]


def test_pairs_need_no_final_line_feed(tmp_path: Path) -> None:
    source, target = written(tmp_path, "a.en", b"a\nb"), written(tmp_path, "a.de", b"c\nd\n")
    assert list(read_pairs(source, target)) == [("a", "c"), ("b", "d")]


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


def refusal_of(read: Callable[[], object]) -> str:
    with pytest.raises(DataError) as raised:
        read()
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", zipped(TEXT), "is a zip archive, not plain text; unpack it with `unzip`"),
        ("a.en", zipped(TEXT), "is a zip archive, not plain text; unpack it with `unzip`"),
        (
            "a.xlsx",
            zipped(TEXT),
            "is an Excel workbook, not plain text; "
            "save it as CSV in UTF-8, or each language as plain text, one sentence a line",
        ),
        *(
            (
                name,
                content,
                f"is {what}, not plain text; save it as plain text, one sentence a line",
            )
            for name, content, what in (
                ("a.pdf", b"%PDF-1.4\n%\xe2\xe3\n", "a PDF document"),
                ("a.rtf", rb"{\rtf1\ansi a}", "an RTF document"),
                ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1", "a document of an old version of Office"),
            )
        ),
        *(
            (
                "a.vtt",
                mark + b"WEBVTT\n\n00:01.000 --> 00:02.000\na\n",
                "is WebVTT, not plain text; convert it to SRT, as `ffmpeg -i a.vtt a.srt` does",
            )
            for mark in (b"", b"\xef\xbb\xbf")
        ),
        *(
            (
                "a.de",
                "Öffne es.\n".encode(encoding),
                f"is UTF-16, not plain text; convert it with `iconv -f {encoding} -t UTF-8`",
            )
            for encoding in ("UTF-16LE", "UTF-16BE")
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
    assert refusal_of(lambda: list(read_lines(file))) == f"{file}: {message}"


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
    remedy = SIDES if kind in ("XML", "SGML", "JSON") else f"name it alone, as `pairs`, or {SIDES}"
    message = f"{file}: is {kind}, not plain text; {remedy}"
    assert refusal_of(lambda: list(read_pairs(file, other))) == message
    assert refusal_of(lambda: list(read_rows(PlainText(text=file)))) == message


@pytest.mark.parametrize(("name", "content", "kind"), STRUCTURED)
def test_what_is_translated_may_be_a_table_or_markup(
    tmp_path: Path, name: str, content: str, kind: str
) -> None:
    file, other = tmp_path / name, tmp_path / "other.de"
    for each in (file, other):
        each.write_text(content, encoding="utf-8")
    lines = content.split("\n")[:-1]
    assert list(read_lines(file)) == lines
    assert list(read_beside(read_lines(file), file, other)) == list(zip(lines, lines, strict=True))


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
        assert refusal_of(lambda other=other: list(read_pairs(file, other))) == (  # type: ignore[misc]
            f"{other}: is source and target at once; name the file that holds the translations"
        )
    assert len(list(read_pairs(file, copy))) == 150


def test_one_file_is_both_sides_of_a_language_into_itself(tmp_path: Path) -> None:
    file = tmp_path / "a.de"
    file.write_bytes(TEXT)
    text = ParallelText(source=file, target=file, source_language="de", target_language="de")
    rows = list(read_rows(text))
    assert len(rows) == 150
    assert all(source == target for source, target in rows)
    for languages in ({}, {"source_language": "de"}, {"target_language": "de"}):
        other = ParallelText(source=file, target=file, **languages)
        assert "is source and target at once" in refusal_of(lambda other=other: read_rows(other))  # type: ignore[misc]
