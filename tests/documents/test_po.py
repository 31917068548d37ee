"""Message catalogs: what has a translation keeps it."""

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.documents.document import read_document
from tformer_cli.documents.segment import Segment
from tformer_cli.errors import DataError

HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    def read(content):
        path = tmp_path_factory.getbasetemp() / "a.po"
        path.write_text(content, encoding="utf-8", newline="")
        return read_document(path)

    return read


def messages(content):
    """The keywords and their texts: strings of gettext are strings of Python."""
    found = re.findall(r'^([a-z]\S*)((?:\s*"(?:[^"\\]|\\.)*")+)', content, re.MULTILINE)
    return [(keyword, ast.literal_eval(f"({strings})")) for keyword, strings in found]


def test_only_messages_without_a_translation_are_translated(read):
    before = (
        HEADER + 'msgid "One"\nmsgstr "Eins"\n\n#, c-format\nmsgctxt "no"\n'
        'msgid ""\n"Say \\"%s\\"\\n"\n"now"\nmsgstr ""\n\n#~ msgid "Old"\n#~ msgstr ""\n'
    )
    document = read(before)
    assert document.segments == [Segment('Say "%s"\nnow')]
    after = document.translated([Segment('Sag\t"%s"\nC:\\')]).decode()
    assert after == before.replace(
        'now"\nmsgstr ""', 'now"\nmsgstr ""\n"Sag\\t\\"%s\\"\\n"\n"C:\\\\"'
    )
    assert read(after).segments == []


def test_plural_forms_have_the_plural(read):
    plurals = 'msgid "file"\nmsgid_plural "files"\nmsgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""\n'
    document = read(HEADER + plurals)
    assert [segment.text for segment in document.segments] == ["file", "files", "files"]
    assert [int(where.rpartition(":")[2]) for where in document.where] == [5, 6, 6]
    after = document.translated(map(Segment, ["a", "b", "c"])).decode()
    assert after == HEADER + plurals.replace('[0] ""', '[0] "a"').replace(
        '[1] ""', '[1] "b"'
    ).replace('[2] ""', '[2] "c"')


def test_a_language_with_one_form_has_the_plural_in_it(read):
    header = HEADER.rstrip("\n") + '\n"Plural-Forms: nplurals=1; plural=0;\\n"\n\n'
    plurals = 'msgid "One file"\nmsgid_plural "%d files"\nmsgstr[0] ""\n'
    document = read(header + plurals + 'msgid "file"\nmsgstr ""\n')
    assert [segment.text for segment in document.segments] == ["%d files", "file"]


def test_octal_and_hexadecimal_escapes_are_bytes(read):
    document = read(HEADER + r'msgid "caf\303\251 \x41\1018\\101\t\"\é"' + '\nmsgstr ""\n')
    assert document.segments == [Segment('café AA8\\101\t"é')]


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_and_a_byte_order_mark_stay(read, bom, newline):
    before = bom + 'msgid ""\n"a\\n"\n"b"\nmsgstr ""\n'.replace("\n", newline)
    after = read(before).translated([Segment("c\nd")]).decode()
    assert after == before + '"c\\n"\n"d"\n'.replace("\n", newline)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_translation_is_read_as_it_is_by_others(read, translation):
    before = HEADER + 'msgid "a"\nmsgstr ""\nmsgid "b"\nmsgstr "B"'
    after = read(before).translated([Segment(translation)]).decode()
    expected = messages(before)
    expected[3] = ("msgstr", translation)
    assert messages(after) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('msgid "a"\nmsgstr b', "po:2: must be a message of gettext"),
        ('"a"', "po:1: must be a message of gettext"),
        ('msgid "a\n', "po:1: must be a message of gettext"),
        ('msgid "a"\nmsgstr "\\351"', "po:2: must be UTF-8; convert the document"),
        (HEADER.replace("UTF-8", "latin-1"), r"po:2: must be UTF-8 \(latin-1\); convert"),
    ],
)
def test_what_is_no_catalog_is_refused(read, content, message):
    with pytest.raises(DataError, match=message):
        read(content)
