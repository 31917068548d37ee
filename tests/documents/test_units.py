"""TMX and XLIFF: what has a translation keeps it, and tags stay well-formed."""

from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tformer_cli.documents.carry import Alignment, carry_tags
from tformer_cli.documents.document import read_document
from tformer_cli.documents.segment import Segment, Tag
from tformer_cli.errors import DataError

SOURCE = 'A <bpt i="1">&lt;b></bpt>big <hi>dog</hi><ept i="1"/><ph x="1"/> &amp; I'


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    def read(content, kind="tmx", **languages):
        path = tmp_path_factory.getbasetemp() / f"a.{kind}"
        path.write_text(content, encoding="utf-8", newline="")
        return read_document(path, **languages)

    return read


def tmx(*variants):
    units = "".join(f'<tuv xml:lang="{code}">{text}</tuv>' for code, text in variants)
    return f"<tmx><body>\n<tu>{units}</tu></body></tmx>"


def upper(document):
    translations = [s._replace(text=s.text.upper()) for s in document.segments]
    return document.translated(translations).decode()


@pytest.mark.parametrize(
    "target",
    [[], [("DE-at", "<seg/>")], [("de", "<seg></seg>")], [("de", "<seg> </seg>"), ("fr", "no")]],
)
def test_a_memory_gets_the_targets_that_it_lacks(read, target):
    others = [("fr", "<seg>non</seg>"), ("en-GB", "<seg>no</seg>")]
    content = tmx(*others, ("en", f"<seg>{SOURCE}</seg>"), *target)
    document = read(content)
    assert [segment.text for segment in document.segments] == ["A big dog & I"]
    written = upper(document)
    expected = SOURCE
    for word in ("big", "dog"):
        expected = expected.replace(word, word.upper())
    assert written.count(f"<seg>{expected}</seg></tuv>") == 1
    ((unit),) = ElementTree.fromstring(written).iter("tu")
    assert len(unit) == max(4, 3 + len(target))
    assert read(written).segments == []


@pytest.mark.parametrize(
    ("source", "target", "texts"),
    [
        ("en", "de", []),
        ("en-GB", "de_DE", []),
        ("en-GB", "pt-BR", ["a"]),
        ("en", "pt", []),
        ("EN-us", "fr", ["b"]),
        ("e", "fr", []),
    ],
)
def test_languages_of_a_memory_may_have_regions(read, source, target, texts):
    variants = [("en", "<seg>a</seg>"), ("de", "<seg>A</seg>"), ("pt-PT", "<seg>A</seg>")]
    content = tmx(*variants, ("en-US", "<seg>b</seg>"))
    document = read(content, source_language=source, target_language=target)
    assert [segment.text for segment in document.segments] == texts


OWN = ["en", "EN-us", "en_GB", "en-gb", "de", "de_AT", "pt", "pt-BR", "pt_br", "pt-PT", ""]
TAG = st.sampled_from(["en", "en-GB", "de", "de-CH", "pt", "pt-BR", "pt-PT"])


@given(st.lists(st.sampled_from(OWN), unique=True), st.tuples(TAG, TAG))
@example(["en_GB", "EN-us", "en-gb"], ("en", "de"))
def test_a_unit_is_translated_unless_it_has_the_language(read, codes, languages):
    own = [tuple(code.lower().replace("_", "-").split("-")) for code in codes]
    wanted = [tuple(tag.lower().split("-")) for tag in languages]
    firsts = [i for i, code in enumerate(own) if code not in own[:i]]
    exact = [[i for i in firsts if own[i] == tag] for tag in wanted]
    # A language and its region, but not two regions of it.
    related = [
        [i for i in firsts if own[i][0] == tag[0] and 1 in (len(own[i]), len(tag))]
        for tag in wanted
    ]
    source = next(iter(exact[0] or [i for i in related[0] if i not in exact[1]]), None)
    target = next(iter(exact[1] or [i for i in related[1] if i != source]), None)
    content = tmx(*((code, f"<seg>text {i}</seg>") for i, code in enumerate(codes)))
    document = read(content, source_language=languages[0], target_language=languages[1])
    expected = [] if source is None or target is not None else [f"text {source}"]
    assert [segment.text for segment in document.segments] == expected


@pytest.mark.parametrize(
    ("languages", "codes", "translated"),
    [
        (("pt", "pt-BR"), ["pt"], "pt"),
        (("pt-BR", "pt"), ["pt_br"], "pt_br"),
        (("en-GB", "en-US"), ["en"], "en"),
        (("pt", "pt-BR"), ["pt-BR"], None),
        (("pt-BR", "pt"), ["pt"], None),
        (("pt", "pt-BR"), ["pt-PT", "pt-BR"], None),
        (("de", "de"), ["de"], None),
        (("en", "de"), ["eng"], "eng"),
        (("en", "de"), ["en", "deu"], None),
        (("pt-BR", "ja"), ["por_BR"], "por_BR"),
        (("en", "ja"), ["en-Latn", "jpn_Jpan"], None),
    ],
)
def test_of_a_language_and_its_region_each_has_its_own_variant(read, languages, codes, translated):
    source, target = languages
    content = tmx(*((code, f"<seg>of {code}</seg>") for code in codes))
    document = read(content, source_language=source, target_language=target)
    expected = [] if translated is None else [f"of {translated}"]
    assert [segment.text for segment in document.segments] == expected
    ((unit),) = ElementTree.fromstring(upper(document)).iter("tu")
    own = "{http://www.w3.org/XML/1998/namespace}lang"
    assert [variant.get(own) for variant in unit] == codes + ([target] if translated else [])


@pytest.mark.parametrize(
    ("root", "file", "expected"),
    [
        (' srcLang="en"', "", (' srcLang="en" trgLang="de"', "")),
        (' srcLang="en" trgLang="de-AT"', "", None),
        (
            "",
            ' source-language="en" id="1"',
            ("", ' source-language="en" id="1" target-language="de"'),
        ),
        ("", ' target-language="de" source-language="en"', None),
        ("", "/><file source-language='fr'/><file", None),
    ],
)
def test_a_file_of_xliff_names_the_language_of_its_targets(read, root, file, expected):
    content = "<xliff{}>\n<file{}><segment><source>a</source>{}</segment></file></xliff>"
    written = upper(read(content.format(root, file, ""), "xlf"))
    assert written == content.format(*(expected or (root, file)), "<target>A</target>")
    complete = content.format(root, file, "<target>x</target>")
    assert upper(read(complete, "xlf")) == complete


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (
            "<trans-unit><source>a</source>{}<note/></trans-unit>",
            ["<target>A</target>", '<target state="new"/>', "<target>ok</target>"],
        ),
        (
            "<unit><segment><source>a</source>{}</segment></unit>",
            ["<target>A</target>", "<target></target>", "<target>ok</target>"],
        ),
    ],
)
def test_a_file_of_xliff_gets_the_targets_that_it_lacks(read, unit, expected):
    new, empty, done = expected
    content = "<xliff><file>{}</file></xliff>"
    filled = empty.replace("/>", "></target>").replace("><", ">A<")
    for before, after in [("", new), (empty, filled), (done, done)]:
        document = read(content.format(unit.format(before)), "xlf")
        assert upper(document) == content.format(unit.format(after))
    kept = content.format(f'<group translate="no">{unit.format("")}</group>')
    assert read(kept, "xliff").segments == []


def test_a_target_stands_behind_the_segments_of_its_source(read):
    unit = "<trans-unit><source>a</source><seg-source>a</seg-source>{}</trans-unit>"
    assert upper(read(unit.format(""), "xlf")) == unit.format("<target>A</target>")


def test_translate_counts_until_an_element_within_has_another(read):
    unit = '<trans-unit translate="{}"><source>{}</source></trans-unit>'
    inner = f"<group>{unit.format('yes', 'a')}{unit.format('', 'no')}</group>"
    content = f'<x><group translate="no">{inner}</group>{unit.format("", "b")}</x>'
    assert [segment.text for segment in read(content, "xlf").segments] == ["a", "b"]


@pytest.mark.parametrize(
    ("around", "source", "expected"),
    [
        (' xml:space="preserve"', "<source>{}</source>", "<target>{}</target>"),
        (
            "",
            '<source xml:space="preserve">{}</source>',
            '<target xml:space="preserve">{}</target>',
        ),
        (' xml:space="preserve"', '<source xml:space="default">{}</source>', None),
        ("", "<source>{}</source>", None),
    ],
)
def test_line_breaks_of_xliff_stay_where_whitespace_counts(read, around, source, expected):
    unit = "<xliff><file{}><trans-unit>{}{}</trans-unit></file></xliff>"
    text = "\na  b\n <g>c\nd</g> &lt;\n"
    target = "<target> A B <g>C D</g> &lt; </target>"
    if expected:
        target = expected.format(text.upper().replace("G>", "g>").replace("&LT;", "&lt;"))
    written = upper(read(unit.format(around, source.format(text), ""), "xlf"))
    assert written == unit.format(around, source.format(text), target)


@pytest.mark.parametrize("mark", ['mtype="protected"', 'translate="no"'])
def test_protected_text_stays(read, mark):
    source = f'a <mrk {mark}>no <g id="1">no</g></mrk> <mrk mtype="seg">b</mrk>'
    unit = f"<unit><segment><source>{source}</source>{{}}</segment></unit>"
    target = source.replace("a <mrk", "A <mrk").replace(">b<", ">B<")
    expected = unit.format(f"<target>{target}</target>")
    assert upper(read(unit.format(""), "xlf")) == expected


@pytest.mark.parametrize("end", ['<em startRef="2"/> b', ""], ids=["a mark", "the segment"])
def test_protected_text_ends_with_its_mark_or_its_segment(read, end):
    kept = '<sm id="2" translate="no"/>no <sm id="3"/><pc id="4">no</pc><em startRef="3"/> no'
    unit = f"<unit><segment><source>a {kept}{end}</source>{{}}</segment></unit>"
    expected = unit.format(f"<target>A {kept}{end.replace('b', 'B')}</target>")
    assert upper(read(unit.format(""), "xlf")) == expected


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ('<bx id="1" rid="3"/>', '<ex id="2" rid="3"/>'),
        ('<sc id="1"/>', '<ec startRef="1"/>'),
        ('<sm id="1" type="term"/>', '<em startRef="1"/>'),
    ],
)
def test_tags_that_begin_and_end_go_around_their_words(read, begin, end):
    unit = f"<unit><segment><source>a {begin}b{end} c</source></segment></unit>"
    (segment,) = read(unit, "xlf").segments
    assert segment == Segment("a b c", (Tag(2, 3, begin, end),))


def test_xml_of_elementtree_is_read(read):
    root = ElementTree.fromstring(tmx(("en", "<seg>größer</seg>")))
    content = ElementTree.tostring(root, encoding="utf8").decode()
    assert "'utf8'" in content
    assert upper(read(content)).count("<seg>GRÖSSER</seg>") == 1


def test_names_may_have_a_prefix(read):
    content = (
        '<x:xliff xmlns:x="x" xmlns:y="y"><x:trans-unit><x:source>a <x:g id="1">b</x:g>'
        "<y:g>no</y:g></x:source>{}<x:note/></x:trans-unit></x:xliff>"
    )
    target = '<x:target>A <x:g id="1">B</x:g><y:g>no</y:g></x:target>'
    assert upper(read(content.format(""), "xlf")) == content.format(target)


INLINE = st.recursive(
    st.sampled_from(
        ["a ", "b", " c", "&lt;", "<ph/>", "<!-- x -->", "<![CDATA[<d> ]]>"]
        + [f'<{name} i="{i}"/>' for name in ("bpt", "ept") for i in (1, 2)]
    ),
    lambda inner: st.lists(inner).map(lambda parts: f"<hi>{''.join(parts)}</hi>"),
)


@given(st.lists(INLINE), st.text("ab <&\x0c"), st.data())
def test_any_translation_is_well_formed(read, inline, translation, data):
    content = tmx(("en", f"<seg>x {''.join(inline)}</seg>"))
    document = read(content)
    (segment,) = document.segments
    sources, targets = (
        [(i, i + 1) for i, character in enumerate(text) if not character.isspace()]
        for text in (segment.text, translation)
    )
    pairs = [(i, j) for i in range(len(sources)) for j in range(len(targets))]
    links = data.draw(st.lists(st.sampled_from(pairs)) if pairs else st.just([]))
    carried, _ = carry_tags(segment, translation, Alignment(sources, targets, links))
    source, target = ElementTree.fromstring(document.translated([carried])).iter("seg")
    written = "".join(target.itertext()).replace(" ", "")
    assert written == translation.replace("\x0c", "").replace(" ", "")
    tags = [sorted(element.tag for element in seg.iter()) for seg in (source, target)]
    assert tags[0] == tags[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<tmx>\n<tu>", r"a\.tmx:2: is not XML \(no element found\)"),
        ("", r"a\.tmx:1: is not XML \(no element found\)"),
        ("<!DOCTYPE x [<!ENTITY e 'e'>]><x>&e;</x>", r"a\.tmx:1: declares entities or elements"),
        ("<?xml version='1.0' encoding='utf-16'?><x/>", r"a\.tmx:1: must be UTF-8 \(utf-16\)"),
    ],
)
def test_what_is_not_plain_xml_is_refused(read, content, message):
    with pytest.raises(DataError, match=message):
        read(content)
