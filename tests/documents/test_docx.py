"""Word documents: formats follow their words, and all else stays."""

import io
import re
import zipfile
from contextlib import suppress
from random import Random
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.documents.carry import Alignment, carry_tags
from tformer_cli.documents.document import read_document
from tformer_cli.errors import DataError

SPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
W = f"{{{SPACE}}}"
BOLD = "<w:b/>"


def part(body):
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<w:x xmlns:w="{SPACE}" xmlns:r="r">{body}</w:x>'
    )


def paragraph(*content):
    return f'<w:p><w:pPr><w:jc w:val="left"/></w:pPr>{"".join(content)}</w:p>'


def run(text, properties=""):
    properties = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    return f'<w:r w:rsidR="1">{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'


def field(kind):
    return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    def read(*body, **others):
        path = tmp_path_factory.getbasetemp() / "a.docx"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("[Content_Types].xml", "<Types/>")
            archive.writestr("word/document.xml", part("".join(body)))
            for name, content in others.items():
                archive.writestr(f"word/{name}.xml", content)
        return read_document(path)

    return read


def members(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def runs(content):
    """The text and the format of each run of the document, by an independent reader."""
    root = ElementTree.fromstring(members(content)["word/document.xml"])
    return [
        (
            "".join(text.text or "" for text in run.iter(f"{W}t")),
            "".join(mark.tag.removeprefix(W) for mark in run.findall(f"{W}rPr/*")),
        )
        for run in root.iter(f"{W}r")
    ]


def texts(document):
    return [segment.text for segment in document.segments]


def words(text):
    return [word.span() for word in re.finditer(r"\S+", text)]


def carried(document, translation, links):
    (segment,) = document.segments
    alignment = Alignment(words(segment.text), words(translation), links)
    segment, lost = carry_tags(segment, translation, alignment)
    return document.translated([segment]), [tag.opening for tag in lost]


def test_bold_follows_its_words(read):
    document = read(paragraph(run("The "), run("red ca", BOLD), run("r", BOLD), run(" &amp; I.")))
    assert texts(document) == ["The red car & I."]
    links = [(0, 0), (1, 2), (2, 1), (3, 3), (4, 4)]
    content, lost = carried(document, "Die Wagen rote & ich.", links)
    assert runs(content) == [("Die ", ""), ("Wagen rote", "b"), (" & ich.", "")]
    assert lost == []
    assert members(content)["word/document.xml"].count(b"<w:pPr>") == 1


def test_all_parts_are_read_and_other_bytes_stay(read):
    table = f"<w:tbl><w:tr><w:tc>{paragraph(run('cell'))}</w:tc></w:tr></w:tbl>"
    document = read(
        table,
        '<w:p/><w:p w:rsidR="1"/><w:pPrChange/>',
        paragraph(run("body")),
        header1=part(paragraph(run("head"))),
        footnotes=part(paragraph(run("note"))),
        styles="not XML",
    )
    assert texts(document) == ["cell", "body", "head", "note"]
    assert [where.rpartition("a.docx/word/")[2] for where in document.where] == [
        *("document.xml:1", "document.xml:4", "header1.xml:1", "footnotes.xml:1")
    ]
    before = members(document.content)
    assert members(document.translated(document.segments)) == before
    upper = [segment._replace(text=segment.text.upper()) for segment in document.segments]
    after = members(document.translated(upper))
    assert after.keys() == before.keys()
    assert [name for name in before if before[name] == after[name]] == [
        *("[Content_Types].xml", "word/styles.xml")
    ]
    assert after["word/footnotes.xml"] == before["word/footnotes.xml"].replace(
        b'w:rsidR="1"', b""
    ).replace(b"<w:r >", b"<w:r>").replace(b"note<", b"NOTE<")


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ('<w:smartTag w:element="City"><w:smartTagPr/>', "</w:smartTag>"),
        ("<w:customXml><w:customXmlPr><w:attr/></w:customXmlPr>", "</w:customXml>"),
        ('<w:bdo w:val="rtl">', "</w:bdo>"),
        ('<w:dir w:val="rtl">', "</w:dir>"),
    ],
)
def test_text_within_other_elements_is_translated(read, opening, closing):
    document = read(paragraph(run("in "), opening, run("big "), run("London", BOLD), closing))
    assert texts(document) == ["in big London"]
    content, lost = carried(document, "im großen London", [(0, 0), (1, 1), (2, 2)])
    xml = members(content)["word/document.xml"].decode()
    assert f'{opening}<w:r><w:t xml:space="preserve">großen' in xml
    assert (runs(content)[-1], xml.count(closing), lost) == (("London", "b"), 1, [])


def test_hyphens_and_tabs_divide_words_as_on_the_page(read):
    hyphen, soft, tab = "<w:noBreakHyphen/>", "<w:softHyphen/>", '<w:ptab w:alignment="right"/>'
    document = read(
        f"<w:p><w:r><w:t>e</w:t>{hyphen}<w:t>mail li</w:t>{soft}<w:t>st</w:t>{tab}"
        "<w:t>page</w:t></w:r></w:p>"
    )
    assert texts(document) == ["e-mail list page"]
    content, lost = carried(document, "E-Mail-Liste Seite", [(0, 0), (1, 0), (2, 1)])
    assert [text for text, _ in runs(content)] == ["E-Mail-Liste ", "", "Seite"]
    assert (members(content)["word/document.xml"].count(tab.encode()), lost) == (1, [])


def test_the_comment_of_an_archive_stays(tmp_path):
    path = tmp_path / "a.docx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = b"of a program"
        archive.writestr("word/document.xml", part(paragraph(run("body"))))
    document = read_document(path)
    with zipfile.ZipFile(io.BytesIO(document.translated(document.segments))) as archive:
        assert archive.comment == b"of a program"


def test_the_main_part_may_have_a_number(read):
    assert texts(read(paragraph(run("a")), document2=part(paragraph(run("b"))))) == ["a", "b"]


def test_a_text_box_splits_its_paragraph(read):
    box = f"<w:r><w:drawing>{paragraph(run('in'))}</w:drawing></w:r>"
    document = read(paragraph(run("before"), box, run("after")))
    assert texts(document) == ["before", "in", "after"]
    upper = [segment._replace(text=segment.text.upper()) for segment in document.segments]
    assert [text for text, _ in runs(document.translated(upper)) if text != "IN"] == [
        *("BEFORE", "AFTER")
    ]


def test_links_fields_and_breaks_stay_whole(read):
    document = read(
        paragraph(
            run("See "),
            f'<w:hyperlink r:id="7">{run("my page", "<w:u/>")}</w:hyperlink>',
            '<w:r><w:br/></w:r><w:proofErr w:type="spellStart"/>',
            run("on"),
            field("begin") + "<w:r><w:instrText>PAGEREF x</w:instrText></w:r>" + field("separate"),
            run(" 7", BOLD) + field("end"),
        )
    )
    assert texts(document) == ["See my page on 7"]
    content, lost = carried(document, "7 sieh seite", [(0, 1), (2, 2), (4, 0)])
    xml = members(content)["word/document.xml"].decode()
    marks = re.findall(r'fldCharType="\w+"|instrText>\w+|<w:t [^>]*>[^<]+', xml)
    assert [re.split("[>=]", mark)[-1].strip('" ') for mark in marks if mark[-2:] != "> "] == [
        *("begin", "PAGEREF", "separate", "7", "end", "sieh", "seite")
    ]
    assert re.search(r'<w:hyperlink r:id="7"><w:r><w:rPr><w:u/></w:rPr><w:t [^>]*>seite<', xml)
    assert (xml.count("<w:br/>"), "proofErr" in xml, lost) == (1, False, [])


INSERTED = f'<w:ins w:id="1">{run("fg") + field("end") + run(" now")}</w:ins>'
IN_A_RUN = run("fg", BOLD).replace("</w:r>", '<w:fldChar w:fldCharType="end"/></w:r>')


BEGIN = field("begin") + "<w:r><w:instrText>REF x</w:instrText></w:r>"


@pytest.mark.parametrize("begin", [BEGIN, f'<w:ins w:id="2">{run("ab ") + BEGIN}</w:ins>'])
@pytest.mark.parametrize("end", [INSERTED, IN_A_RUN + run(" now")])
def test_a_field_that_crosses_elements_stays_whole(read, begin, end):
    result = field("separate") + run("cd ")
    document = read(paragraph(run("ab "), begin, result, end, run(" so")))
    random, sources = Random(1), len(words(texts(document)[0]))
    for _ in range(500):
        links = [(random.randrange(sources), random.randrange(3)) for _ in range(6)]
        content, _ = carried(document, "A B C", links)
        assert "".join(text for text, _ in runs(content)) == "A B C"
        xml = members(content)["word/document.xml"].decode()
        assert re.findall('fldCharType="(.*?)"', xml) == ["begin", "separate", "end"]


PIECES = st.sampled_from(
    [
        run("one "),
        run("two", BOLD),
        run(" &lt;", "<w:i/>"),
        f'<w:hyperlink r:id="7">{run("a ")}{run("link", BOLD)}</w:hyperlink>',
        f"<w:sdt><w:sdtPr/><w:sdtContent>{run('c')}</w:sdtContent></w:sdt>",
        f"<w:r>{BOLD}<w:t>x</w:t><w:tab/><w:t>y<!-- z --></w:t></w:r>",
        "<w:del><w:r><w:delText>no</w:delText></w:r></w:del>",
        *(field(kind) for kind in ("begin", "separate", "end")),
        "<w:r/>",
        INSERTED,
        f"<w:smartTag><w:smartTagPr/>{run('d ')}</w:smartTag>",
        IN_A_RUN,
    ]
)


@given(st.lists(PIECES), st.text("ab <&\x0c\ufffe"), st.data())
def test_any_translation_gives_a_document_with_its_text(read, pieces, translation, data):
    document = read(paragraph(*pieces))
    before = members(document.content)
    assert members(document.translated(document.segments)) == before
    if not document.segments:
        return
    sources, targets = len(words(texts(document)[0])), len(words(translation))
    pairs = [(i, j) for i in range(sources) for j in range(targets)]
    links = data.draw(st.lists(st.sampled_from(pairs)) if pairs else st.just([]))
    content, _ = carried(document, translation, links)
    text = "".join(text for text, _ in runs(content))
    assert text == re.sub("[\x0c\ufffe]", "", translation)
    for mark in ("<w:hyperlink", "<w:sdtPr/>", "<w:tab/>", "<w:delText>", '"begin"', '"end"'):
        counts = [
            file["word/document.xml"].count(mark.encode()) for file in (before, members(content))
        ]
        assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<w:p>", r"a\.docx/word/document\.xml:1: is not XML \(mismatched tag\)"),
        ("<w:p>" * 300, r"a\.docx/word/document\.xml:1: is nested too deeply"),
        (paragraph() + "&x;", r"a\.docx/word/document\.xml:2: is not XML \(undefined entity\)"),
    ],
)
def test_a_part_that_is_not_xml_is_refused(read, body, message):
    with pytest.raises(DataError, match=message):
        read(body)


def test_what_is_no_archive_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.docx"
    path.write_bytes(b"PK no")
    with pytest.raises(DataError, match=r"a\.docx: cannot be read as a document"):
        read_document(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", part(paragraph()))
    monkeypatch.setattr("tformer_cli.documents.docx.MAX_PART_SIZE", 1)
    with pytest.raises(DataError, match=r"a\.docx/word/document\.xml: must be at most 0 MiB large"):
        read_document(path)


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_a_damaged_archive_is_read_or_refused(tmp_path, compression):
    path = tmp_path / "a.docx"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("word/document.xml", part(paragraph(run("a" * 99))))
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + b"\xff" + content[position + 1 :])
        with suppress(DataError):
            # Nothing where its name is damaged; but never another text.
            assert texts(read_document(path)) in ([], ["a" * 99])
