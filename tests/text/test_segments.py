import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.text.segments import segment_text, sentence_ends, truncate_text, word_separator

TEXTS = st.text(alphabet="aB .,;:!?\"')\u201d。，；？」\u0301\u200d\u3000\U0001f469", max_size=60)


@given(TEXTS, st.integers(1, 20))
def test_pieces_in_a_row_are_the_text_and_none_is_too_long(text, max_tokens):
    pieces = segment_text(text, max_tokens, len)
    assert "".join(pieces) == text
    assert all(1 <= len(piece) <= max_tokens for piece in pieces)


@given(TEXTS, st.integers(1, 6))
def test_tokens_that_span_characters_are_counted_as_they_are(text, max_tokens):
    def count_tokens(stretch: str) -> int:
        # Each pair of equal neighbours is one token: more text may be fewer tokens.
        pairs = sum(stretch[i] == stretch[i - 1] for i in range(1, len(stretch)))
        return 3 * len(stretch) - 2 * pairs

    pieces = segment_text(text, max_tokens, count_tokens)
    assert "".join(pieces) == text
    assert all(len(piece) == 1 or count_tokens(piece) <= max_tokens for piece in pieces)


@given(
    st.lists(st.sampled_from(["Go. ", 'It "is!"  ', "我来。", "A b c d? ", "Ab…) "]), min_size=1),
    st.integers(10, 25),
)
def test_as_many_sentences_as_fit_make_a_piece(sentences, max_tokens):
    packed = [""]
    for sentence in sentences:
        if len(packed[-1]) + len(sentence) > max_tokens:
            packed.append("")
        packed[-1] += sentence
    assert segment_text("".join(sentences), max_tokens, len) == packed


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("A by. C d, e f g h i", ["A by. ", "C d, ", "e f g h i"]),
        ("One two; three, four", ["One two; ", "three, four"]),
        ("one two, three four", ["one two, ", "three four"]),
        ("one two three four", ["one two ", "three four"]),
        ("onetwothreefour", ["onetwothreef", "our"]),
        ('He. "No!" (Yes.) Ah.', ['He. "No!" ', "(Yes.) Ah."]),
        ("It is 3.14159265358979.", ["It is ", "3.1415926535", "8979."]),
        ("他在河边看书。」我们，明天再来", ["他在河边看书。」", "我们，明天再来"]),
        ("他在河边看书，我们明天再来", ["他在河边看书，", "我们明天再来"]),
        ("好吗？！他在河边看书我们来", ["好吗？！", "他在河边看书我们来"]),
        ("。我们明天再来在河边看书吧", ["。", "我们明天再来在河边看书吧"]),
        ("هل؟ نعم، لا شيء", ["هل؟ ", "نعم، لا شيء"]),
    ],
)
def test_the_best_pause_within_reach_ends_a_piece(text, pieces):
    assert segment_text(text, 12, len) == pieces


@pytest.mark.parametrize(
    ("character", "max_tokens"),
    [("e\u0301", 5), ("\U0001f469\u200d\U0001f467\u200d\U0001f466", 8), ("\u0915\u093f", 3)],
)
def test_a_character_keeps_its_marks(character, max_tokens):
    pieces = segment_text(20 * character, max_tokens, len)
    assert {len(piece) % len(character) for piece in pieces} == {0}


@given(TEXTS.filter(bool), st.integers(1, 20))
def test_a_beginning_is_as_long_as_may_be(text, max_tokens):
    assert truncate_text(text, max_tokens, len) == text[:max_tokens]
    # Blanks are no tokens here.
    found = truncate_text(text, max_tokens, lambda stretch: len("".join(stretch.split())))
    assert text.startswith(found)
    assert len("".join(found.split())) == min(max_tokens, len("".join(text.split())))


def test_a_character_of_more_tokens_than_allowed_stands_alone():
    assert segment_text("ab", 3, lambda stretch: 5 * len(stretch)) == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    ["a", ".", '."', ".)", " ", ". ", "。", "a, ", "\u0301", "\u200d", "a b", "word. word; "],
)
def test_no_text_is_counted_more_often_than_its_length_allows(text):
    text *= 20_000 // len(text)
    counted = 0

    def count_tokens(stretch: str) -> int:
        nonlocal counted
        counted += len(stretch)
        return len(stretch)

    assert len(segment_text(text, 50, count_tokens)) <= 2 * len(text) / 50
    assert counted <= 20 * len(text)


@pytest.mark.parametrize(
    ("language", "blank"),
    [("de", " "), ("zh", ""), ("zh-Hant", ""), ("ja_JP", ""), ("TH", ""), ("target", " ")],
)
def test_sentences_are_joined_as_the_language_does(language, blank):
    assert word_separator(language) == blank


def sentences(text: str) -> list[str]:
    ends = sentence_ends(text)
    return [text[start:end] for start, end in itertools.pairwise([0, *ends])]


@pytest.mark.parametrize(
    "expected",
    [
        ["The cat drinks milk. ", "The dog sleeps."],
        ["Really?! ", 'He said: "Stop." ', "Then… ", "(Yes.)"],
        ["the dog sleeps. ", "the cat drinks"],
        ["Mr. Smith met J. R. R. Tolkien and Prof. Lee at 3 p.m. in St. Louis. ", "He left."],
        ["Am 3. Mai kam z. B. Dr. Weiß mit ca. drei Hunden. ", "Er ging."],
        ['"Come!" he said. ', "Neither do I. ", "It was 1990. ", "We left."],
        ["It is 3.14159."],
        ["好吗？！", "他在河边看书。」", "我们来"],
        ["هل؟ ", "نعم، لا شيء"],
        ["No mark at all"],
        [],
    ],
)
def test_a_sentence_ends_behind_its_mark_and_not_behind_an_abbreviation(expected):
    assert sentences("".join(expected)) == expected


@given(TEXTS, st.integers(1, 20), st.integers(1, 3))
def test_no_piece_has_more_sentences_than_it_may(text, max_tokens, max_sentences):
    pieces = segment_text(text, max_tokens, len, max_sentences=max_sentences)
    assert "".join(pieces) == text
    ends = sentence_ends(text)
    start = 0
    for piece in pieces:
        within = [end for end in ends if start < end < start + len(piece)]
        assert len(within) < max_sentences
        assert 1 <= len(piece) <= max_tokens
        start += len(piece)


@given(TEXTS.filter(bool), st.integers(1, 3))
def test_where_tokens_allow_pieces_are_whole_sentences(text, max_sentences):
    whole = sentences(text)
    groups = ["".join(whole[i : i + max_sentences]) for i in range(0, len(whole), max_sentences)]
    assert segment_text(text, len(text), len, max_sentences=max_sentences) == groups
