"""Inline tags are carried to a translation, whatever its words and its alignment are."""

from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.documents.carry import Alignment, carry_tags
from tformer_cli.documents.segment import Segment, Token

NAMES = st.sampled_from("bi")
TOKENS = st.one_of(
    st.builds(Token, st.just("text"), st.sampled_from(["ab", "c ", " ", ". ", "ab c. de "])),
    NAMES.map(lambda name: Token("open", f"<{name}>", name)),
    NAMES.map(lambda name: Token("close", f"</{name}>", name)),
    st.sampled_from([Token("point", "<x/>"), Token("break", "<hr>")]),
)
WORDS = st.lists(st.sampled_from(["de", "f.", "ab", "(g)"]))


def spans(text):
    """The characters of each word between spaces."""
    words, position = [], 0
    for word in text.split(" "):
        words += [(position, position + len(word))] if word else []
        position += len(word) + 1
    return words


def carried(tokens, translation, links):
    segment = Segment.of(tokens)
    alignment = Alignment(spans(segment.text), spans(translation), links)
    return carry_tags(segment, translation, alignment)


def rendered(tokens, translation, links):
    segment, lost = carried(tokens, translation, links)
    return segment.markup(str), [tag.opening for tag in lost]


def tokens(markup):
    """The tokens of `<b>one</b> two`."""
    parts = markup.replace("<", "\n<").replace(">", ">\n").split("\n")
    kinds = {"<x": "point", "</": "close", "<": "open"}
    for part in filter(None, parts):
        kind = next((kind for start, kind in kinds.items() if part.startswith(start)), "text")
        yield Token(kind, part, part.strip("</>") if kind != "text" else "")


@given(st.lists(TOKENS))
def test_a_segment_has_the_tokens_that_it_is_made_of(tokens):
    markup = "".join(token.text for token in tokens)
    assert Segment.of(tokens).markup(str) == markup


@given(st.lists(TOKENS), WORDS, st.data())
def test_each_tag_opens_and_closes_for_any_alignment(tokens, words, data):
    segment, translation = Segment.of(tokens), " ".join(words)
    sources, targets = spans(segment.text), spans(translation)
    pairs = [(i, j) for i in range(len(sources)) for j in range(len(targets))]
    links = data.draw(st.lists(st.sampled_from(pairs)) if pairs else st.just([]))
    result, lost = carry_tags(segment, translation, Alignment(sources, targets, links))
    assert len(lost) <= len(segment.tags)
    opened, text = [], ""
    for token in result.tokens():
        if token.kind == "text":
            text += token.text
        elif token.kind == "open":
            opened.append(token.text)
        else:
            opening = opened.pop()
            assert token.text in ("", opening.replace("<", "</"))
    assert (text.replace(" ", ""), opened) == (translation.replace(" ", ""), [])
    assert sorted(map(str, (tag[2:5] for tag in result.tags))) == sorted(
        map(str, (tag[2:5] for tag in segment.tags))
    )
    # What stands between words keeps its order.
    for parent in {tag.parent for tag in segment.tags}:
        points = [
            new.start
            for old, new in zip(segment.tags, result.tags, strict=True)
            if old.start == old.end and old.parent == parent
        ]
        assert points == sorted(points)


@given(st.lists(TOKENS))
def test_an_identity_translation_changes_no_tag(tokens):
    segment = Segment.of(tokens)
    words = spans(segment.text)
    links = [(i, i) for i in range(len(words))]
    result, lost = carry_tags(segment, segment.text, Alignment(words, words, links))
    assert lost == []
    assert result.markup(str).replace(" ", "") == segment.markup(str).replace(" ", "")


def test_tags_follow_their_words():
    source = "the <b>red</b> car <x>is <i>very fast</i>."
    links = [(0, 0), (1, 2), (2, 1), (3, 3), (4, 4), (5, 5)]
    assert rendered(tokens(source), "la voiture rouge est très rapide.", links) == (
        "la voiture <b>rouge</b> <x>est <i>très rapide</i>.",
        [],
    )


def test_tags_within_tags_stay_within():
    source = "<a>a <b>big</b> dog</a> barks"
    links = [(0, 1), (1, 3), (2, 2), (3, 0)]
    assert rendered(tokens(source), "bellt ein hund groß", links) == (
        "bellt <a>ein hund <b>groß</b></a>",
        [],
    )


def test_a_tag_around_all_stays_around_all():
    assert rendered(tokens("<a><b>one two</b></a>"), "eins", []) == ("<a><b>eins</b></a>", [])


def test_a_part_of_a_word_is_found_in_the_word():
    assert rendered(tokens("H<sub>2</sub>O now"), "jetzt H2O", [(0, 1), (1, 0)]) == (
        "jetzt H<sub>2</sub>O",
        [],
    )


def test_a_tag_whose_words_have_no_translation_is_named():
    assert rendered(tokens("one <b>two</b> three"), "eins drei", [(0, 0), (2, 1)]) == (
        "eins <b></b>drei",
        ["<b>"],
    )


def test_a_tag_that_is_a_word_stays_one():
    # An element that is kept, such as code, is a tag between two words.
    source, links = "<x1/> is good, <b><x2/></b> <x3/> bad , see <x4/>.", [(0, 1), (4, 3)]
    assert rendered(tokens(source), "Gut ist, schlecht siehe auch.", links) == (
        "<x1/> Gut ist, <b><x2/></b> <x3/> schlecht siehe <x4/> auch.",
        [],
    )


def test_a_tag_at_a_word_stays_at_it():
    assert rendered(
        tokens("one<x1/> two <x2/>three"), "eins zwei drei", [(0, 0), (1, 1), (2, 2)]
    ) == (
        "eins<x1/> zwei <x2/>drei",
        [],
    )
