"""SubRip: a translation fills the cues that its source filled."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.documents.carry import Alignment, carry_tags
from tformer_cli.documents.document import read_document

FIRST, SECOND = "1\n00:00:01,000 --> 00:00:02,500\n", "\n\n2\n00:00:03,000 --> 00:00:04,000\n"


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    def read(content):
        path = tmp_path_factory.getbasetemp() / "film.srt"
        path.write_text(content, encoding="utf-8", newline="")
        return read_document(path)

    return read


def words(text):
    return [word.span() for word in re.finditer(r"\S+", text)]


def test_a_sentence_goes_over_two_cues(read):
    document = read(f"{FIRST}I saw\nthe <i>dog</i>{SECOND}that barked.\n\n")
    (segment,) = document.segments
    assert segment.text == "I saw the dog that barked."
    translation = "Ich sah den Hund, der bellte."
    alignment = Alignment(words(segment.text), words(translation), [(i, i) for i in range(6)])
    carried, lost = carry_tags(segment, translation, alignment)
    assert lost == []
    written = document.translated([carried]).decode()
    assert written == f"{FIRST}Ich sah\nden <i>Hund</i>,{SECOND}der bellte.\n\n"


@pytest.mark.parametrize("cues", [("One.", "two"), ("One", "Two"), ("One…</i>", "two")])
def test_other_cues_are_segments_of_their_own(read, cues):
    document = read(FIRST + cues[0] + SECOND + cues[1])
    assert len(document.segments) == 2


@pytest.mark.parametrize(
    "header",
    [
        "2\n00:00:03 --> 00:00:04\n",
        "2\n00:03,000 --> 00:04,000\n",
        "2\n00: 00: 03.0 -- > 00: 00: 04.0 X1:40\n",
        " 2 \r\n\r\n-00:00:03:00 --> 00:00:04:00\r\n",
        "00:00:03,0000-->00:00:04,0000\n",
    ],
)
def test_the_times_of_a_cue_have_many_forms(read, header):
    document = read(f"{FIRST}One day.\n\n{header}Two days.\n\n{header}and so on")
    assert [segment.text for segment in document.segments] == ["One day.", "Two days.", "and so on"]
    segments = [segment._replace(text=segment.text.upper()) for segment in document.segments]
    written = document.translated(segments).decode()
    assert written == f"{FIRST}ONE DAY.\n\n{header}TWO DAYS.\n\n{header}AND SO ON"


def test_captions_without_punctuation_are_not_one_sentence(read):
    cues = "".join(SECOND + "and so on" for _ in range(9))
    assert [s.text.count("on") for s in read(f"{FIRST}and so on{cues}").segments] == [4, 4, 2]


@given(
    st.lists(st.sampled_from(["wort", "9", "-->", "x\n1\ny"])),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4))),
)
def test_no_translation_adds_or_removes_a_cue(read, target, pairs):
    document = read(f"{FIRST}one\ntwo\nthree four{SECOND}five\nsix <b>seven\neight</b>\n")
    (segment,) = document.segments
    translation = " ".join(target)
    targets, sources = words(translation), words(segment.text)
    links = [(i, j) for i, j in pairs if i < len(sources) and j < len(targets)]
    carried, _ = carry_tags(segment, translation, Alignment(sources, targets, links))
    written = document.translated([carried]).decode()
    assert re.findall(r"^\d+\n.*-->.*\n", written, re.MULTILINE) == [FIRST, SECOND.lstrip()]
    first, second = written.removeprefix(FIRST).split(SECOND)
    assert re.sub("</?b>", "", f"{first} {second}").split() == translation.split()
    assert "\n\n" not in first + second.rstrip("\n")
