"""Files that hold both sides: what is read of each format, and what is refused, and where."""

import bz2
import gzip
import io
import itertools
import lzma
import os
import re
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bitexts import NEEDS_PYARROW, WRITERS, json_lines, tmx, tsv, write, xliff
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.text import PairsFile
from tformer_cli.corpus.lines import read_lines
from tformer_cli.corpus.reader import read_pairs, read_rows
from tformer_cli.corpus.records import SkippedRecordsWarning, declared_languages, kind_of
from tformer_cli.errors import DataError

PAIRS = [
    ("A dog runs.", "Ein Hund rennt."),
    (' "Well", it <says> & barks, ', "„Nun“, sagt's; & <bellt>,"),
    ("", "leer"),
    ("a\u2028b\x85c", "漢字 👩‍👩‍👧"),
    ("</seg> ]]> &amp;", "\\n {} []"),
]
LANGUAGES = ("en", "de")


def text_of(file: Path, **keys: object) -> PairsFile:
    return PairsFile(**{"pairs": file, "languages": LANGUAGES, **keys})  # type: ignore[arg-type]


def pairs_of(file: Path, **keys: object) -> list[tuple[str, ...]]:
    return list(read_rows(text_of(file, **keys)))


def refusal(file: Path, **keys: object) -> str:
    with pytest.raises(DataError) as caught:
        pairs_of(file, **keys)
    return str(caught.value)


@pytest.fixture(params=WRITERS)
def name(request: pytest.FixtureRequest) -> str:
    if request.param in NEEDS_PYARROW:
        pytest.importorskip("pyarrow")
    return request.param


def test_pairs_of_each_format_are_those_of_plain_files(tmp_path: Path, name: str) -> None:
    for side, language in enumerate(LANGUAGES):
        lines = "".join(f"{pair[side]}\n" for pair in PAIRS)
        (tmp_path / language).write_text(lines, encoding="utf-8", newline="\n")
    plain = list(read_pairs(tmp_path / "en", tmp_path / "de"))
    assert pairs_of(write(tmp_path, name, PAIRS)) == plain == PAIRS


@pytest.mark.parametrize("ending", ["", ".txt", ".en-de"])
def test_the_format_is_told_by_content_without_an_ending(
    tmp_path: Path, name: str, ending: str
) -> None:
    file = write(tmp_path, name, PAIRS)
    if name == "a.csv":
        pytest.skip("a text may have commas")
    other = tmp_path / f"other{ending}{'.gz' if name.endswith('.gz') else ''}"
    file.rename(other)
    assert pairs_of(other) == PAIRS


# Characters that XML can hold, and none that a format uses between cells.
CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
LINES = st.text(CHARACTERS, max_size=12)


@given(st.lists(st.tuples(LINES, LINES), max_size=5))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, pairs) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    for name in WRITERS:
        # A table without a header may begin with any text.
        if name not in NEEDS_PYARROW:
            start = [("start", "Anfang")]
            assert pairs_of(write(folder, name, [*start, *pairs])) == [*start, *pairs]


def test_line_feeds_in_a_record_become_spaces(tmp_path: Path) -> None:
    broken = [("one \n two", "eins\n\nzwei\n")]
    for name in ("a.csv", "a.jsonl", "a.tmx", "a.xlf"):
        assert pairs_of(write(tmp_path, name, broken)) == [("one two", "eins zwei")]


def test_a_run_of_spaces_in_a_record_takes_linear_time(tmp_path: Path) -> None:
    # The square of it are hours.
    spaces = " " * 2_000_000
    broken = [(f"one{spaces}\n{spaces}two{spaces}three", "eins")]
    assert pairs_of(write(tmp_path, "a.jsonl", broken)) == [(f"one two{spaces}three", "eins")]


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        ("1\tA\t2\tB\n", ("2", "4")),
        ("1\tA\tx\n2\tde\n", ("2", "1")),
        ("Source\tTarget\nA\tB\n", (None, None)),
        ("tgt\tsrc\nB\tA\n", (None, None)),
        ("German\tEnglish\nB\tA\n", ("english", "german")),
        ("\ufeffen\tde\n\nA\tB\r\n", (None, None)),
    ],
)
def test_columns_of_a_table_are_chosen(tmp_path: Path, content: str, fields) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(content, encoding="utf-8", newline="\n")
    first, second = fields
    cells = [line.split("\t") for line in content.replace("\r", "").splitlines() if line]
    read = pairs_of(file, source_field=first, target_field=second)
    if first == "2":
        columns = [int(field) - 1 for field in fields]
        assert read == [tuple(row[column] for column in columns) for row in cells]
    else:
        assert read == [("A", "B")]


@pytest.mark.parametrize(
    ("header", "languages"),
    [
        (("de", "en"), ("en-GB", "de")),
        (("de-AT", "en_US"), LANGUAGES),
        (("deu", "eng_Latn"), LANGUAGES),
        (("en-US", "de"), ("en-US", "de")),
    ],
)
def test_a_header_names_languages_with_or_without_a_region(
    tmp_path: Path, header: tuple[str, str], languages: tuple[str, str]
) -> None:
    pair = ("B", "A") if header[0].startswith("de") else ("A", "B")
    file = write(tmp_path, "a.tsv", [header, pair])
    assert pairs_of(file, languages=languages) == [("A", "B")]


@pytest.mark.parametrize(
    "languages", [("en-US", "en-GB"), ("en_US", "en_GB"), ("en-US", "en"), ("en", "en-GB")]
)
def test_regions_of_one_language_are_told_apart_in_a_header(
    tmp_path: Path, languages: tuple[str, str]
) -> None:
    file = write(tmp_path, "a.tsv", [("en-GB", "en-US"), ("colour", "color")])
    assert pairs_of(file, languages=languages) == [("color", "colour")]


@pytest.mark.parametrize("delimiter", list(",;\t"))
def test_csv_has_one_of_three_delimiters(tmp_path: Path, delimiter: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f'en{delimiter}de\n"a, b; c"{delimiter}"""d"""\n', encoding="utf-8")
    assert pairs_of(file) == [("a, b; c", '"d"')]
    file.write_text(f'"a, b, c; d;;\t\t\t"{delimiter}e\n', encoding="utf-8")
    assert pairs_of(file) == [("a, b, c; d;;\t\t\t", "e")]


def test_json_has_key_paths(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": {"b": {"c": "A"}}, "d.e": "B"}\n\n', encoding="utf-8")
    assert pairs_of(file, source_field="a.b.c", target_field="d.e") == [("A", "B")]


def test_codes_in_translation_memories_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.tmx").write_text(
        '<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx><body><tu><note>no</note><tuv lang="EN"><seg>'
        "a <bpt>&lt;b></bpt><hi>dog</hi><ept>&lt;/b></ept> &#233;</seg></tuv>"
        '<tuv xml:lang="fr"><seg>un</seg></tuv><tuv xml:lang="de_DE"><seg>Hund</seg></tuv></tu>'
        "</body></tmx>",
        encoding="utf-8",
    )
    assert pairs_of(tmp_path / "a.tmx") == [("a dog é", "Hund")]
    (tmp_path / "a.xlf").write_text(
        '<xliff><file source-language="en" target-language="de"><trans-unit><source>a <g id="1">'
        "dog</g><x id='2'/></source><seg-source>no</seg-source><target>Hund<ph>%s</ph></target>"
        "</trans-unit></file></xliff>",
        encoding="utf-8",
    )
    assert pairs_of(tmp_path / "a.xlf") == [("a dog", "Hund")]


def test_translation_memories_are_read_in_both_directions(tmp_path: Path) -> None:
    turned = [(target, source) for source, target in PAIRS]
    for name in ("a.tmx", "a.xlf", "b.xliff", "a.zip"):
        english = "en" if name == "a.zip" else "en-US"
        assert pairs_of(write(tmp_path, name, PAIRS), languages=("de", english)) == turned


def test_codes_of_three_letters_find_the_languages_of_a_memory(tmp_path: Path) -> None:
    for name in ("a.tmx", "a.xlf"):
        assert pairs_of(write(tmp_path, name, PAIRS), languages=("eng_Latn", "deu")) == PAIRS


def test_an_exact_language_comes_before_its_relatives(tmp_path: Path) -> None:
    content = tmx([("a", "b")]).replace(b'"en"', b'"de-DE"')
    (tmp_path / "a.tmx").write_bytes(content)
    assert pairs_of(tmp_path / "a.tmx", languages=("de-DE", "de-AT")) == [("a", "b")]


@pytest.mark.parametrize(
    ("languages", "own"),
    [(("pt", "pt-BR"), "pt"), (("pt-BR", "pt"), "pt"), (("en-GB", "en-US"), "en")],
)
def test_no_text_is_that_of_a_language_and_of_its_region(
    tmp_path: Path, languages: tuple[str, str], own: str
) -> None:
    file = tmp_path / "a.tmx"
    file.write_text(
        f'<tmx><tu><tuv xml:lang="{own}"><seg>a</seg></tuv></tu>'
        f'<tu><tuv xml:lang="{languages[1]}"><seg>b</seg></tuv>'
        f'<tuv xml:lang="{languages[0]}"><seg>c</seg></tuv></tu></tmx>'
    )
    text = PairsFile(pairs=file, languages=languages, on_error="skip")
    with pytest.warns(SkippedRecordsWarning, match=r"has no text in \S+ \("):
        assert list(read_rows(text)) == [("c", "b")]


@pytest.mark.parametrize(
    ("source", "codes", "expected"),
    [
        ("pt-BR", ["pt", "pt-BR"], ["pt-BR", "pt"]),
        ("pt_br", ["en", "pt-PT", "pt-BR"], ["pt-BR", "pt-PT", "en"]),
        ("pt", ["en", "pt-BR"], ["pt-BR", "en"]),
        ("*all*", ["pt", "pt-BR"], ["pt", "pt-BR"]),
    ],
)
def test_the_source_language_of_a_memory_comes_first(
    tmp_path: Path, source: str, codes: list[str], expected: list[str]
) -> None:
    file = tmp_path / "a.tmx"
    texts = "".join(f'<tuv xml:lang="{code}"><seg>a</seg></tuv>' for code in codes)
    file.write_text(f'<tmx><header srclang="{source}"/><body><tu>{texts}</tu></body></tmx>')
    assert declared_languages(PairsFile(pairs=file)) == expected


@pytest.mark.parametrize(
    ("own", "wanted", "is_exchanged"),
    [
        (("pt", "pt-BR"), ("pt-BR", "pt"), True),
        (("pt", "pt-BR"), ("pt", "pt_br"), False),
        (("en-US", None), ("en-GB", "en-US"), True),
        (("pt", "pt"), ("pt-BR", "pt"), False),
        (("de", "de"), ("de", "de"), False),
        (("de-AT", "en"), ("en-GB", "de"), True),
    ],
)
def test_units_of_a_language_and_its_region_have_their_direction(
    tmp_path: Path, own: tuple[str, str | None], wanted: tuple[str, str], is_exchanged: bool
) -> None:
    source, target = own
    named = f' target-language="{target}"' if target else ""
    file = tmp_path / "a.xlf"
    file.write_text(
        f'<xliff><file source-language="{source}"{named}><trans-unit><source>a</source>'
        "<target>b</target></trans-unit></file></xliff>"
    )
    assert pairs_of(file, languages=wanted) == [("b", "a") if is_exchanged else ("a", "b")]


@pytest.mark.parametrize(
    "languages", [("en-US", "de"), ("en_US", "de"), ("eng-us", "deu_Latn"), ("en_US", "de_AT")]
)
def test_an_exact_tag_of_a_header_comes_before_its_relatives(
    tmp_path: Path, languages: tuple[str, str]
) -> None:
    rows = [("en-GB", "en-US", "de-AT"), ("colour", "color", "Farbe")]
    file = tmp_path / "a.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in rows))
    assert pairs_of(file, languages=languages) == [("color", "Farbe")]


@pytest.mark.parametrize("languages", [("en", "en"), ("en", "eng_Latn")])
@pytest.mark.parametrize("header", [("eng", "eng"), ("eng", "simple"), ("en-Latn", "en-GB")])
def test_no_column_is_both_sides_by_codes_of_one_language(
    tmp_path: Path, languages: tuple[str, str], header: tuple[str, str]
) -> None:
    file = write(tmp_path, "a.tsv", [header, ("He departed.", "He left.")])
    assert pairs_of(file, languages=languages)[-1] == ("He departed.", "He left.")


def test_a_file_within_xliff_has_no_language_of_another(tmp_path: Path) -> None:
    unit = "<trans-unit><source>{}</source><target>{}</target></trans-unit>"
    files = [
        f'<file source-language="en" target-language="de">{unit.format("a", "A")}</file>',
        f'<file source-language="en">{unit.format("b", "B")}</file>',
        f'<file source-language="de" target-language="en">{unit.format("c", "C")}</file>',
    ]
    path = tmp_path / "a.xlf"
    path.write_text(f"<xliff>{''.join(files)}</xliff>")
    assert pairs_of(path) == [("a", "A"), ("b", "B"), ("C", "c")]
    path.write_text(f"<xliff>{''.join(files[:2])}</xliff>")
    with pytest.warns(SkippedRecordsWarning, match=r"\(1\).* is not from en to fr \(en to de\)"):
        assert pairs_of(path, languages=("en", "fr"), on_error="skip") == [("b", "B")]


FIVE = [(f"source {number}", f"Ziel {number}") for number in range(5)]


def replaced(content: bytes, old: str, new: bytes) -> bytes:
    assert content.count(old.encode()) == 1
    return content.replace(old.encode(), new)


FAULTS = [
    ("a.tsv", replaced(tsv(FIVE), "source 2\t", b"source 2 "), ":3: has no column 2 (1 in all)"),
    (
        "a.tsv",
        replaced(tsv(FIVE), "Ziel 3", b"Z\xfc"),
        ":4: not UTF-8 (byte 0xfc at column 11); convert it, from Latin-1 for instance with "
        "`iconv -f LATIN1 -t UTF-8`",
    ),
    (
        "a.csv",
        WRITERS["a.csv"](FIVE).replace(b"Ziel 1", b'"a\n\xc3\xa4\xfc"'),
        ":4: not UTF-8 (byte 0xfc at column 2); "
        "convert it, from Latin-1 for instance with `iconv -f LATIN1 -t UTF-8`",
    ),
    (
        "a.csv",
        WRITERS["a.csv"](FIVE).replace(b"Ziel 1", b"Ziel, 1"),
        ":3: has more columns than the first record (4 and 3); is a separator within a text?",
    ),
    (
        "a.tsv",
        replaced(tsv(FIVE), "source 1", b"sou\trce 1"),
        ":2: has more columns than the first record (3 and 2); is a separator within a text?",
    ),
    (
        "a.csv",
        WRITERS["a.csv"](FIVE).replace(b"Ziel 1", b'"a"b'),
        ":3: is not CSV (',' expected after '\"'); "
        "close each quote, double one within a cell, and quote a cell with a line break",
    ),
    (
        "a.csv",
        WRITERS["a.csv"](FIVE).replace(b"Ziel 1", b"Ziel\r1"),
        ":3: is not CSV (new-line character seen in unquoted field); "
        "close each quote, double one within a cell, and quote a cell with a line break",
    ),
    (
        "a.jsonl",
        replaced(json_lines(FIVE), "source 4", b'"'),
        ":5: is not JSON (Expecting ',' delimiter); "
        "write an object a line, as `jq -c '.[]'` does of a list",
    ),
    (
        "a.jsonl",
        b"[1]\n" + json_lines(FIVE),
        ":1: is not a JSON object ([1]); write an object a line, as `jq -c '.[]'` does of a list",
    ),
    (
        "a.jsonl",
        replaced(json_lines(FIVE), '"source 1"', b"null"),
        ":2: has no text at translation.en and translation.de (id, translation); "
        "set `source_field` and `target_field`, such as translation.en",
    ),
    (
        "a.jsonl",
        replaced(json_lines(FIVE), "source 1", rb"\ud83d"),
        ":2: has half of a surrogate pair, which is no character",
    ),
    (
        "a.tmx",
        replaced(tmx(FIVE), "source 1</seg></tuv></tu>", b"</seg></tuv></tu>").replace(
            b'"en"><seg></seg>', b'"fr"><seg></seg>'
        ),
        ":6: has no text in en (de-AT, fr)",
    ),
    ("a.xlf", replaced(xliff(FIVE), "<target>Ziel 1</target>", b""), ":6: has no target"),
]
IDS = [f"{name}-{number}" for number, (name, *_) in enumerate(FAULTS)]


@pytest.mark.parametrize(("name", "content", "message"), FAULTS, ids=IDS)
def test_a_record_without_a_pair_is_located(tmp_path: Path, name, content, message) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert refusal(file) == f"{file}{message}"


@pytest.mark.parametrize(("name", "content", "message"), FAULTS, ids=IDS)
def test_a_record_without_a_pair_is_skipped_and_counted(
    tmp_path: Path, name, content, message
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.warns(SkippedRecordsWarning) as caught:
        pairs = pairs_of(file, on_error="skip")
    assert len(pairs) == len(set(pairs)) >= 4
    assert set(pairs) <= set(FIVE)
    (warning,) = caught
    where = "records without a pair were skipped"
    assert str(warning.message).startswith(f"{file}: {where} (1); {file}{message}")


@pytest.mark.parametrize("num_behind", [3, 20_000])
@pytest.mark.parametrize("quoted", ['"open,offen', 'open,"offen', '"open"er,offen', '"a""b,""'])
def test_an_open_quote_takes_no_lines_of_other_records(
    tmp_path: Path, quoted: str, num_behind: int
) -> None:
    pairs = [(f"source {number}", f"Ziel {number}") for number in range(num_behind)]
    file = tmp_path / "a.csv"
    lines = [f"{source},{target}" for source, target in pairs]
    file.write_text("\n".join(["en,de", *lines[:2], quoted, quoted, *lines[2:], ""]))
    with pytest.warns(SkippedRecordsWarning) as caught:
        assert pairs_of(file, on_error="skip") == pairs
    skipped = str(caught[0].message)
    assert skipped.startswith(f"{file}: records without a pair were skipped (2); {file}:4: is not")
    assert f"{file}:5: is not CSV" in skipped


def test_csv_in_utf16_or_compressed_is_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("en,de\na,b\n", encoding="utf-16")
    named = (
        f"{file}:1: not UTF-8 (byte 0xff at column 1); it begins like UTF-16: "
        "convert it with `iconv -f UTF-16 -t UTF-8`"
    )
    assert refusal(file) == named
    # As Excel writes it: a CR within a line is no CSV.
    file.write_text("en,de\r\na,b\r\n", encoding="utf-16", newline="")
    assert refusal(file) == named
    file.write_bytes(gzip.compress(b"en,de\na,b\n"))
    assert refusal(file) == f"{file}: is gzip; let its name end in .gz, or decompress it"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "a.docx",
            "is a Word document, not plain text; save it as plain text, one sentence a line",
        ),
        (
            "a.xlsx",
            "is an Excel workbook, not plain text; "
            "save it as CSV in UTF-8, or each language as plain text, one sentence a line",
        ),
    ],
)
def test_office_documents_are_no_zips_of_texts(tmp_path: Path, name: str, complaint: str) -> None:
    file = tmp_path / name
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("[Content_Types].xml", "")
    assert refusal(file) == f"{file}: {complaint}"


def test_lines_of_quoted_cells_count(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('en,de\n"a\nb",c\n"d\n",e\nf\n', encoding="utf-8")
    assert refusal(file) == f"{file}:6: has no column 2 (1 in all)"


def test_a_warning_lists_the_first_records(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(tsv(FIVE) + b"x\n" * 2000)
    with pytest.warns(SkippedRecordsWarning) as caught:
        assert pairs_of(file, on_error="skip") == FIVE
    message = str(caught[0].message)
    listed = [f"{file}:{number}: has no column 2 (1 in all)" for number in range(6, 11)]
    assert message == (
        f"{file}: records without a pair were skipped (2,000); {'; '.join(listed)}; ..."
    )


def zipped(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_", "."), content)
    return stream.getvalue()


CUT = tmx(FIVE)[:300]
CUT_LINE = CUT.count(b"\n") + 1


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tmx", CUT, f":{CUT_LINE}: is not well-formed XML (no element found)"),
        ("a.xlf", b"<xliff>\n&nbsp;</xliff>", ":2: is not well-formed XML (undefined entity)"),
        (
            "a.tmx",
            b'<!DOCTYPE tmx [\n<!ENTITY a "b">\n]><tmx>&a;</tmx>',
            ":2: has an entity that XML itself does not define (a); replace it by its text",
        ),
        (
            "a.tmx",
            b'<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx>&eacute;</tmx>',
            ":2: has an entity that XML itself does not define (eacute); replace it by its text",
        ),
        ("a.tsv.gz", gzip.compress(tsv(FIVE), mtime=0)[:-9], ": is damaged gzip"),
        ("a.zip", WRITERS["a.zip"](FIVE)[:-30], ": is a damaged or encrypted zip"),
        (
            "a.zip",
            zipped(ü_en=b"a\n", ü_de=b"b\n").replace("ü".encode(), b"\xff\xff"),
            ": is a damaged or encrypted zip ('utf-8' codec can't decode byte 0xff",
        ),
        ("a.zip", b"", ": is a damaged or encrypted zip"),
        ("a.txt", b"text\n", ": is not TSV, CSV, JSON Lines, TMX, XLIFF, zip, Parquet, Arrow; "),
    ],
)
def test_a_damaged_file_always_stops(tmp_path: Path, name, content, message, on_error) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert refusal(file, on_error=on_error).startswith(f"{file}{message}")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "file.arrow"])
def test_a_damaged_arrow_file_is_named(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    file = write(tmp_path, name, PAIRS)
    content = file.read_bytes()
    name_of_column = content.replace(b"translation", b"tran\xa3lation")
    for damaged in (content[:-40], content[: len(content) // 2], b"", b"x" * 100, name_of_column):
        file.write_bytes(damaged)
        assert refusal(file).startswith(f"{file}: ")


@pytest.mark.parametrize("type_name", ["string", "large_string", "struct"])
def test_texts_beyond_an_arrow_file_are_not_read(tmp_path: Path, type_name: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    file = tmp_path / "a.arrow"
    texts = pyarrow.array(["a" * 1000, "b" * 1000, "c"])
    if type_name == "struct":
        write_columns(file, translation=pyarrow.StructArray.from_arrays([texts, texts], LANGUAGES))
    else:
        write_columns(file, en=texts.cast(type_name), de=texts.cast(type_name))
    width = 8 if type_name == "large_string" else 4
    offsets = [(1000 * count).to_bytes(width, "little") for count in (1, 2)]
    content = file.read_bytes()
    assert content.count(b"".join(offsets)) == 2
    beyond = (1 << 30).to_bytes(width, "little")
    file.write_bytes(content.replace(b"".join(offsets), offsets[0] + beyond, 1))
    assert refusal(file).startswith(f"{file}: is damaged (")


@pytest.mark.parametrize("name", ["a.tmx", "a.xlf"])
def test_xml_in_an_encoding_that_is_not_read_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    content = WRITERS[name](FIVE).decode().removeprefix('<?xml version="1.0"?>')
    for encoding in ("iso-8859-5", "utf-16", "us-ascii"):
        file.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>{content}'.encode(encoding))
        assert pairs_of(file) == FIVE
    for encoding in ("gbk", "shift_jis", "big5", "none-such", "rot13"):
        file.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>{content}'.encode())
        assert re.fullmatch(
            rf"{file}: must be UTF-8 \(.+\); convert it, and its XML declaration with it",
            refusal(file),
        )


@pytest.mark.parametrize("name", ["a.tmx", "a.xlf"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_xml_of_elementtree_is_read(tmp_path: Path, name: str, mark: bytes) -> None:
    root = ElementTree.fromstring(write(tmp_path, name, PAIRS).read_bytes())
    written = ElementTree.tostring(root, encoding="utf8")
    assert b"'utf8'" in written
    (tmp_path / name).write_bytes(mark + written)
    assert pairs_of(tmp_path / name) == PAIRS


def test_a_unit_within_a_text_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "a.tmx"
    content = tmx(FIVE[:1]).replace(b"Ziel 0", b"Ziel <tu>1</tu>")
    file.write_bytes(content)
    with pytest.warns(SkippedRecordsWarning):
        assert pairs_of(file, on_error="skip") == []


def write_columns(file: Path, **columns: object) -> None:
    import pyarrow.parquet

    table = pyarrow.table(columns)
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(table, file)
        return
    with file.open("wb") as stream, pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_without_text_are_not_converted(tmp_path: Path, name: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    file, sides = tmp_path / name, {"en": ["a", "b"], "de": ["A", "B"]}
    for number, unit in ((1, "ns"), (2**60, "us")):
        times = pyarrow.array([number, number], type=pyarrow.timestamp(unit))
        write_columns(file, time=times, **sides)
        assert pairs_of(file) == [("a", "A"), ("b", "B")]
        assert refusal(file, languages=("en", "fr")).startswith(
            f"{file}:1: has no text at en and fr (time, en, de); "
        )
        write_columns(file, time=times)
        assert refusal(file).startswith(f"{file}:1: has no text at en and de (time); ")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_rows_that_are_not_utf8_are_located(tmp_path: Path, name: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    file = tmp_path / name
    texts = pyarrow.array([b"a", b"caf\xe9", b"b", b"\xff"]).view(pyarrow.string())
    write_columns(file, en=texts, de=["A", "C", "B", "D"])
    first = f"{file}:2: not UTF-8 (byte 0xe9); write its columns in UTF-8"
    assert refusal(file) == first
    with pytest.warns(SkippedRecordsWarning) as caught:
        assert pairs_of(file, on_error="skip") == [("a", "A"), ("b", "B")]
    assert f"(2); {first}; {file}:4: " in str(caught[0].message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped(a_en=b"a\n"), ": must hold one file whose name ends in .de (a.en)"),
        (zipped(a_en=b"a", b_en=b"b", a_de=b"c"), ": must hold one file whose name ends in .en"),
        (
            zipped(a_en=b"a\nb\n", a_de=b"c\n"),
            "/a.en:2: has no counterpart in ZIP/a.de (2 and 1 lines); "
            "line n of one file must translate line n of the other",
        ),
        (zipped(a_en=b"a\nb\n", a_de=b"c\n\xff\n"), "/a.de:2: not UTF-8"),
    ],
)
def test_a_zip_holds_a_file_for_each_language(tmp_path: Path, content, message) -> None:
    file = tmp_path / "a.zip"
    file.write_bytes(content)
    assert refusal(file).startswith(f"{file}{message.replace('ZIP', str(file))}")


def test_a_zip_of_macos_has_more_than_its_files(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("text.en/", b"")
        for name, content in (("a.en", b"a\n"), ("a.de", b"b\n")):
            archive.writestr(f"text.en/{name}", content)
            archive.writestr(f"__MACOSX/text.en/._{name}", b"\0\5\x16\7")
    assert pairs_of(file) == [("a", "b")]
    assert declared_languages(PairsFile(pairs=file)) == ["en", "de"]


@pytest.mark.parametrize("fields", [("en", "it"), ("1", "x"), ("0", "1"), ("1", "9" * 5000)])
def test_columns_that_are_not_there_are_named(tmp_path: Path, fields: tuple[str, str]) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(tsv([("en", "de"), *FIVE]))
    assert refusal(file, source_field=fields[0], target_field=fields[1]) == (
        f"{file}:1: names no columns {' and '.join(fields)} (en, de); "
        "write names of columns, or their numbers from 1"
    )


def test_an_unclosed_quote_is_an_error_and_takes_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'en,de\na,"b\n' + b"text,Text\n" * 100_000)
    tracemalloc.start()
    message = refusal(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message == (
        f"{file}:2: is not CSV (field larger than field limit (131072)); "
        "close each quote, double one within a cell, and quote a cell with a line break"
    )
    assert peak < 4 << 20


def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    def peak(count: int) -> int:
        text = text_of(write(tmp_path, name, [(f"s{i}" * 20, f"t{i}") for i in range(count)]))
        tracemalloc.start()
        num_read = sum(1 for _ in read_rows(text))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert num_read == count
        return most

    peak(10)
    few = peak(2_000)
    assert peak(12_000) < few + (256 << 10)


def test_pairs_come_before_the_rest_is_read(tmp_path: Path) -> None:
    for name in ("a.tsv", "a.csv", "a.jsonl", "a.tmx", "a.xlf"):
        file = write(tmp_path, name, FIVE * 5_000)
        with file.open("ab") as stream:
            stream.write(b"\xff<")
        rows = read_rows(text_of(file))
        assert list(itertools.islice(rows, 5)) == FIVE
        with pytest.raises(DataError):
            list(rows)


PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def packed(ending: str, content: bytes) -> bytes:
    if ending != ".zst":
        return PACKERS[ending](content)
    pyarrow = pytest.importorskip("pyarrow")
    stream = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(stream, "zstd") as output:
        output.write(content)
    return bytes(stream.getvalue())


@pytest.mark.parametrize("ending", [*PACKERS, ".zst"])
def test_compressed_files_read_as_plain_ones(tmp_path: Path, ending: str) -> None:
    content = tsv(PAIRS * 100)
    plain, file = tmp_path / "a.tsv", tmp_path / f"a.tsv{ending}"
    plain.write_bytes(content)
    file.write_bytes(packed(ending, content) + packed(ending, b"more\tmehr\n"))
    assert list(read_lines(file)) == [*read_lines(plain), "more\tmehr"]
    assert pairs_of(file) == [*pairs_of(plain), ("more", "mehr")]
    file.write_bytes(packed(ending, b""))
    assert pairs_of(file) == []


@pytest.mark.parametrize(
    ("ending", "form"), [(".gz", "gzip"), (".bz2", "bzip2"), (".xz", "xz"), (".zst", "Zstandard")]
)
def test_damaged_compressed_files_are_refused(tmp_path: Path, ending: str, form: str) -> None:
    file = tmp_path / f"a.en{ending}"
    content = packed(ending, os.urandom(9_000).hex().encode())
    for damaged in (content[:-7], content[: len(content) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=f"{ending}: is damaged {form} "):
            list(read_lines(file))
    for other, what in ((b"text\n", f"is named {ending} but is not"), (b"", "is empty, which no")):
        file.write_bytes(other)
        with pytest.raises(DataError, match=f"{what} {form}"):
            list(read_lines(file))
    file.with_suffix("").write_bytes(content)
    with pytest.raises(DataError, match=f"a.en: is {form}; let its name end in {ending}, or dec"):
        list(read_lines(file.with_suffix("")))


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    for name, content in (("a.parquet", b"PAR1"), ("a.zst", b"\x28\xb5\x2f\xfd")):
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(Exception, match="pyarrow: is not installed; pip install"):
            pairs_of(file)


def test_kinds_are_told_by_the_last_known_ending() -> None:
    for name, kind in (("a.tmx.tsv", "TSV"), ("a.CSV.gz", "CSV"), ("de-en.txt.zip", "zip")):
        assert kind_of(Path(name)) == kind


XML = ("a.tmx", "a.xlf", "b.xliff")
NO_XML = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\ufffe\uffff]")


def can_hold(name: str, line: str) -> bool:
    """Return whether a format has a way to write a line at all."""
    if name.startswith("a.tsv"):
        return "\t" not in line
    return name not in XML or NO_XML.search(line) is None


def hostile_files(corpora: Path, *verdicts: str) -> Iterator[tuple[Path, str]]:
    """Yield the plain files of some verdicts, and the line of their fault."""
    for row in (corpora / "hostile" / "expected.tsv").read_text(encoding="utf-8").split("\n")[1:-1]:
        file, _, verdict, fault_line, *_ = row.split("\t")
        if verdict in verdicts and not file.endswith(".gz"):
            yield corpora / "hostile" / file, fault_line


def test_hostile_lines_are_read_from_each_format(corpora: Path, tmp_path: Path, name: str) -> None:
    num_read = 0
    for file, _ in hostile_files(corpora, "ok", "ok-or-error"):
        try:
            lines = [line for line in read_lines(file) if can_hold(name, line)]
        except DataError:
            continue
        pairs = list(zip(lines, reversed(lines), strict=True))
        if name.startswith("a.tsv"):
            # A line without a cell is no record, nor is a mark at the beginning text.
            pairs = [("start", "Anfang"), *pairs]
        assert pairs_of(write(tmp_path, name, pairs)) == pairs, file.name
        num_read += len(pairs)
    assert num_read > 1000


RAW = {
    "a.tsv": (b"", b"%b\tb\n", 0, ""),
    "a.csv": (b"en,de\n", b'"%b",b\n', 1, ""),
    "a.jsonl": (b"", b'{"en": "%b", "de": "b"}\n', 0, ""),
    "a.tmx": (
        b"<tmx><body>\n",
        b'<tu><tuv xml:lang="en"><seg>%b</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu>\n',
        1,
        "",
    ),
    "a.zip": (b"", b"%b\n", 0, "/a.en"),
}


@pytest.mark.parametrize("name", RAW)
def test_hostile_bytes_are_located_in_each_format(corpora: Path, tmp_path: Path, name: str) -> None:
    head, row, num_head, member = RAW[name]
    num_refused = 0
    for hostile, fault_line in hostile_files(corpora, "error"):
        lines = hostile.read_bytes().rstrip(b"\n").split(b"\n")
        # Pairs of unequal files, and bytes that are no lines.
        if not fault_line or hostile.name[:2] in ("06", "17", "30", "31"):
            continue
        content = head + b"".join(row % line for line in lines)
        if member:
            content = zipped(a_en=content, a_de=b"b\n" * len(lines))
        file = tmp_path / name
        file.write_bytes(content)
        expected = f"{file}{member}:{int(fault_line) + num_head}: "
        message = refusal(file)
        assert message.startswith(expected), hostile.name
        assert "not UTF-8" in message or "not well-formed" in message
        num_refused += 1
    assert num_refused >= 6


def test_hostile_pairs_of_unequal_length_are_refused_in_a_zip(
    corpora: Path, tmp_path: Path
) -> None:
    sides = [(corpora / "hostile" / f"30_unequal.{code}").read_bytes() for code in LANGUAGES]
    (tmp_path / "a.zip").write_bytes(zipped(a_en=sides[0], a_de=sides[1]))
    assert "has no counterpart in" in refusal(tmp_path / "a.zip")
