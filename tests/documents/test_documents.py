"""Documents keep all that is not translated, byte for byte."""

import contextlib
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.documents.document import PARSERS, check_same_kind, is_document, read_document
from tformer_cli.errors import DataError, UsageError

PAGE = """<!DOCTYPE html>\r\n<html lang=en><head><title>A &amp; B</title>
<style>p > b { color: red }</style></head><body>
<p>One <B>two</b> <a href='x?a&b'>three</a>.<br>Four</p><!-- no <p>no</p> -->
<ul><li>five<li>six &nbsp; <img alt="no"> </ul><pre>no</pre> 7 </body></html>
"""
TMX = """<?xml version="1.0"?>\r\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx><body>
<tu><tuv xml:lang='en-US'><seg>A &amp; B</seg></tuv><tuv xml:lang="de"><seg>A und B</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>non</seg></tuv></tu></body></tmx>"""
XLIFF = """<xliff><file><body><trans-unit id="1"><source>One</source><target>Eins</target>
</trans-unit><group translate="no"><trans-unit><source>no</source></trans-unit></group></body>
</file></xliff>"""
CASES = {
    ".htm": {"plain": "<p>hello <i>you</i>"},
    ".html": {"plain": PAGE, "broken": "a < b <c <!-- no", "nothing": ""},
    ".jsonl": {
        "plain": '{"id": 1, "text": "Hello."}\n{"text":"W\\u00f6rld \\"x\\"" , "m":{"text":"no"}}',
        "windows": ' { "text" : "" }\r\n\r\n{"a": [1, {"text": 2}], "text": "a\u2028b"}\r\n',
        "nothing": "",
    },
    ".po": {
        "translated": '# a\nmsgctxt "x"\nmsgid ""\n"one"\n"two"\nmsgstr "eins"\r\n#~ msgid "old"\n',
        "nothing": "",
    },
    ".srt": {
        "plain": "1\n00:00:01,000 --> 00:00:02,500\nHello.\nWorld.\n\n"
        "2\n00:00:03,000 --> 00:00:04,000\nBye\n\n3\n00:00:05,000 --> 00:00:06,000\nand bye.\n",
        "windows": "\ufeff1\r\n00:00:01,000 --> 00:00:02,500 X1:40\r\nHello.\r\nWorld.\r\n\r\n",
        "empty": "1\n00:00:01,000 --> 00:00:02,000\n\n2\n00:00:03,000 --> 00:00:04,000",
        "hostile": "x\n\n7\n0:00:01.0 --> 0:00:02.0\n<i>a\n\n12\n\u202bשלום</i>\n 3 \n\n",
        "nothing": "",
    },
    ".tmx": {"translated": TMX},
    ".xlf": {"translated": XLIFF},
    ".xliff": {"nothing": "<xliff/>"},
}
FILES = [(kind, content) for kind, contents in CASES.items() for content in contents.values()]


def test_every_kind_has_cases():
    assert CASES.keys() <= PARSERS.keys()


@pytest.mark.parametrize(("kind", "content"), FILES)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_identity_translation_gives_the_same_bytes(tmp_path, kind, content, suffix):
    path = tmp_path / f"a{kind}{suffix}"
    path.write_bytes(gzip.compress(content.encode()) if suffix else content.encode())
    document = read_document(path)
    assert document.translated(document.segments) == content.encode()


@pytest.mark.parametrize(("kind", "content"), FILES)
def test_translations_read_back_in_their_order(tmp_path, kind, content):
    path = tmp_path / f"a{kind}"
    path.write_bytes(content.encode())
    document = read_document(path)
    # As long as their sources, so that tags can stay.
    umlauts = str.maketrans("aeol", "äëöł")
    translations = [s._replace(text=s.text.translate(umlauts)) for s in document.segments]
    assert not translations or translations != document.segments
    path.write_bytes(document.translated(translations))
    assert read_document(path).segments == translations


@given(
    st.text(alphabet='x1<>/ib{}\\":,\n -\r\u202b&', max_size=200), st.sampled_from(list(PARSERS))
)
def test_hostile_text_is_kept_or_refused(tmp_path_factory, content, kind):
    path = tmp_path_factory.getbasetemp() / f"hostile{kind}"
    path.write_bytes(content.encode())
    with contextlib.suppress(DataError):
        document = read_document(path)
        assert document.translated(document.segments) == content.encode()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (".html", "{} <b>you</b>"),
        (".jsonl", '{{"text": "{}"}}'),
        (".po", 'msgid "hello"\nmsgstr "{}"\n'),
        (".srt", "1\n00:00:01,000 --> 00:00:02,000\n{}\n"),
        (".xlf", "<xliff><segment><source>hello</source><target>{}</target></segment></xliff>"),
    ],
)
def test_a_byte_order_mark_stays_and_is_no_text(tmp_path, kind, content):
    path = tmp_path / f"a{kind}"
    path.write_text(content.format("" if "hello" in content else "hello"), encoding="utf-8-sig")
    document = read_document(path)
    (segment,) = document.segments
    assert segment.text.removesuffix(" you") == "hello"
    written = document.translated([segment._replace(text=segment.text.replace("hello", "hallo"))])
    assert written == content.format("hallo").encode("utf-8-sig")


def test_segments_are_named_by_their_line(tmp_path):
    path = tmp_path / "film.srt"
    path.write_text(CASES[".srt"]["plain"], encoding="utf-8")
    assert read_document(path).where == [f"{path}:3", f"{path}:8"]


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    assert not is_document(path)
    with pytest.raises(UsageError, match="is not a document"):
        read_document(path)
    for name, content in {"a.srt": b"\xff", "a.srt.gz": b"\x1f\x8b"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=r"must be UTF-8|cannot be read as a document"):
            read_document(tmp_path / name)


def test_a_missing_document_and_a_folder_are_named(tmp_path):
    path = tmp_path / "a.docx"
    with pytest.raises(DataError, match=r"a\.docx: no such file; name a document that is there"):
        read_document(path)
    path.mkdir()
    with pytest.raises(DataError, match=r"a\.docx: is a folder; name a document in it"):
        read_document(path)


def test_the_output_is_of_the_same_kind():
    film = Path("film.srt")
    check_same_kind(film, Path("film.de.SRT.gz"))
    for name in ("film.jsonl", "film.txt", "film.gz"):
        with pytest.raises(UsageError, match="must be of the same kind as the document"):
            check_same_kind(film, Path(name))
