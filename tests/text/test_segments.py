"""A line of text in segments, sentences, words and terms."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text.test_subword import PLAIN
from text.test_symbol import learned_characters
from text.test_symbol import tokenizer as word_tokenizer

from tformer_cli.errors import DataError, UsageError
from tformer_cli.text.segments import (
    Terminology,
    aligned_units,
    first_word_indices,
    pharaoh,
    segment_text,
    sentence_ends,
    text_spans,
    truncate_text,
    unit_indices,
    unit_texts,
    word_indices,
    word_separator,
    word_spans,
)

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
    [
        ("e\u0301", 5),
        ("\U0001f469\u200d\U0001f467\u200d\U0001f466", 8),
        ("\u0915\u093f", 3),
        ("\u0e19\u0e49\u0e33", 5),
        ("\uff76\uff9e", 3),
    ],
)
def test_a_character_keeps_its_marks(character, max_tokens):
    pieces = segment_text(20 * character, max_tokens, len)
    assert {len(piece) % len(character) for piece in pieces} == {0}
    ends = {end for _, end in word_spans(20 * character, "ja")}
    assert ends <= set(range(len(character), 20 * len(character) + 1, len(character)))


@pytest.mark.parametrize("mark", sorted(set("…؟۔।॥։።፧།။៕።！［］｛｣・׃")))
def test_a_mark_of_any_script_is_no_part_of_a_word(mark):
    assert word_spans(f"ab{mark} {mark}cd", "en") == [(0, 2), (5, 7)]
    assert word_spans(f"あ{mark}", "ja") == [(0, 1)]


@given(TEXTS.filter(bool), st.integers(1, 20))
def test_a_beginning_is_as_long_as_may_be(text, max_tokens):
    assert truncate_text(text, max_tokens, len) == text[:max_tokens]
    # Whitespace is no token here.
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
    ("language", "separator"),
    [("de", " "), ("zh", ""), ("zh-Hant", ""), ("ja_JP", ""), ("TH", ""), ("target", " ")],
)
def test_sentences_are_joined_as_the_language_does(language, separator):
    assert word_separator(language) == separator


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
        ["እሱ መጣ። ", "እሷ ሄደች።"],
        ["Նա եկավ։ ", "Նա գնաց։"],
        ["သူ လာတယ်။ ", "သူမ သွားတယ်။"],
        ["គាត់មក។ ", "នាងទៅ។"],
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


@pytest.mark.parametrize(
    ("spelled", "numbers"),
    [
        ([b" the", b" gre", b"en", b" house", b"."], [0, 1, 1, 2, 2]),
        # U+00FC byte by byte, after a token of whitespace.
        ([b" ", b"\xc3", b"\xbc", b"ber", b" ", b" a"], [None, 0, 0, 0, None, 1]),
        ([b"a", b" ", b"bc", b" "], [0, None, 1, None]),
        ([b" ", b"\t"], [None, None]),
        ([b"a b", b"c", b"d"], [0, 1, 1]),
        ([b"", b"a", b"", b"b", b" ", b"", b"c"], [None, 0, None, 0, None, None, 1]),
        ([], []),
    ],
)
def test_words_are_what_whitespace_separates(spelled, numbers):
    assert word_indices(spelled) == numbers


@given(st.lists(st.text("ab \t\u00a0\u3000é", max_size=3).map(str.encode), max_size=8))
def test_the_first_letter_of_a_token_is_in_the_word_of_its_number(spelled):
    text = b"".join(spelled)
    end = 0
    for token, number in zip(spelled, word_indices(spelled), strict=True):
        first = end + len(token) - len(token.lstrip())
        end += len(token)
        if token.strip():
            # So many words there are up to that letter, the one that it is in included.
            assert number == len(text[: first + 1].split()) - 1
        else:
            assert number is None


@given(st.text("aeu bü.,\t\u3000\u4f60"))
def test_subwords_spell_the_text_that_they_decode_to(line):
    tokenizer = PLAIN["bpe"]
    ids = tokenizer.encode(line)
    spelled = tokenizer.to_bytes(ids)
    assert b"".join(spelled).decode().removeprefix(" ") == tokenizer.decode(ids)
    words = tokenizer.decode(ids).encode().split()
    units = word_indices(spelled)
    assert {*units} - {None} == {*range(len(words))}
    assert unit_texts(tokenizer, ids, units) == tuple(word.decode().strip() for word in words)


def test_pieces_count_on_and_without_separator_each_token_counts():
    characters = learned_characters(["ab cd"])
    pieces = [characters.encode(text) for text in ("ab c", "", "d a")]
    numbers = [0, 0, None, 1, 2, None, 3]
    assert unit_indices(characters, pieces, [0, 0, 2], " ") == numbers
    assert unit_indices(characters, pieces, [0, 0, 1], " ") == [0, 0, None, 1, 1, None, 2]
    assert unit_indices(characters, pieces, [0, 0, 2], "") == [*range(7)]


@given(st.lists(st.text("ab \t\u00a0é", max_size=4), max_size=8))
def test_a_piece_begins_in_the_word_of_its_first_letter(pieces):
    for index, (piece, number) in enumerate(zip(pieces, first_word_indices(pieces), strict=True)):
        if letters := piece.encode().split():
            before = "".join(pieces[:index]).encode() + piece.encode().partition(letters[0])[0]
            assert number == len((before + b"x").split()) - 1


@pytest.mark.parametrize(
    ("links", "source", "target", "pairs"),
    [
        ([1, 0, 1, 2], [0, 1, 1], [0, 1, 1, 2], ((0, 1), (1, 0), (1, 1), (1, 2))),
        # Whitespace: of the source for the next word, if there is one; of the target never.
        ([0, 1, 3, 0], [None, 0, 0, None], [0, None, 1, 2], ((0, 0), (0, 2))),
        ([], [0], [], ()),
    ],
)
def test_linked_units_are_the_pairs_of_linked_tokens(links, source, target, pairs):
    assert aligned_units(links, source, target) == pairs


def test_pharaoh_writes_the_source_first():
    assert pharaoh([(0, 1), (12, 3)]) == "0-1 12-3"
    assert pharaoh([]) == ""


def test_characters_are_words_together_and_words_alone():
    characters = learned_characters(["ab cd"])
    ids = characters.encode("ab c")
    assert characters.to_bytes(ids) == [b"a", b"b", b" ", b"c"]
    words = word_tokenizer()
    assert word_indices(words.to_bytes(words.encode("the dog . the"))) == [0, 1, 2, 3]


def terminology(*terms: str, language: str = "en") -> Terminology:
    return Terminology(terms, "terms.tsv", source_language=language)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("The dog sleeps.", ["Hund"]),
        ("dog", ["Hund"]),
        ("the dogs of dogma, a bulldog", []),
        ("The Dog sleeps.", []),
        ("A dog's (dog) life", ["Hund"]),
        ("an old dog and a cat", ["Katze"]),
        ("a cat, a dog", ["Katze", "Hund"]),
        ("a dog, an old dog", ["Hund"]),
        ("", []),
    ],
)
def test_terms_are_whole_words_and_the_longest_counts(line, wanted):
    terms = terminology("dog\tHund", "old dog and\tKatze", "cat\tKatze", "an old dog\tHund")
    assert terms.target_terms(line) == wanted


def test_a_term_may_begin_or_end_with_a_mark():
    terms = terminology("C++\tCpp", ".NET\tNet")
    assert terms.target_terms("C++ and .NET, C++11") == ["Cpp", "Net"]
    assert terminology("C\tC").target_terms("C++ C_x") == ["C"]


def test_a_mark_of_a_script_belongs_to_its_word():
    assert terminology("क\tka").target_terms("कि") == []


def test_a_language_without_whitespace_has_terms_anywhere():
    terms = terminology("東京\tTokio", "京都\tKyoto", "東京都\tPräfektur Tokio", language="ja")
    assert terms.target_terms("私は東京へ") == ["Tokio"]
    assert terms.target_terms("東京都と京都") == ["Präfektur Tokio", "Kyoto"]


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=3), st.sampled_from("XYZ"), max_size=5),
    st.text("ab", max_size=12),
)
def test_terms_are_found_as_one_by_one_from_the_longest(terms, line):
    found, rest = {}, line
    for term in sorted(terms, key=len, reverse=True):
        while (index := rest.find(term)) >= 0:
            rest = rest[:index] + "." * len(term) + rest[index + len(term) :]
            found[index] = terms[term]
    # Equally long terms that overlap compete by position, which finding them in turn ignores.
    if len({len(term) for term in terms}) == len(terms):
        expected = list(dict.fromkeys(found[index] for index in sorted(found)))
        rows = [f"{term}\t{target}" for term, target in terms.items()]
        assert terminology(*rows, language="zh").target_terms(line) == expected


def test_lines_of_whitespace_and_repeated_ones_change_nothing():
    assert terminology("", "dog\tHund", " ", "dog \t Hund").targets == {"dog": "Hund"}


@pytest.mark.parametrize("line", ["dog", "dog\t", "\tHund", "dog\tHund\tm"])
def test_a_line_that_is_no_term_is_named(line):
    with pytest.raises(DataError) as caught:
        terminology("", "cat\tKatze", line)
    assert str(caught.value) == (
        f"terms.tsv:3: must be a source term, a tab and a target term ({line!r})"
    )


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (["cat\tKatze", "dog\tH\udcfcnd"], "terms.tsv:2: is not UTF-8"),
        ("dog\tHund", "`lines`: must"),
    ],
)
def test_terms_that_are_no_lines_of_text_are_refused(lines, where):
    with pytest.raises(UsageError) as caught:
        Terminology(lines, "terms.tsv", source_language="en")
    assert str(caught.value).startswith(where)


def test_a_second_translation_is_refused():
    with pytest.raises(DataError) as caught:
        terminology("dog\tHund", "", "dog\tKöter")
    assert str(caught.value) == (
        "terms.tsv:3: has another translation than line 1 ('Köter' for 'dog'); keep one of the two"
    )


@pytest.mark.parametrize(
    ("text", "parts", "found"),
    [
        ("  Ab cd", ["ab", "cd"], ["Ab", "cd"]),
        ("ＡＢ１２", ["ab", "12"], ["ＡＢ", "１２"]),
        (
            "猫が\U0001f600寝る",
            ["猫", "が", "", "\U0001f600", "寝る"],
            ["猫", "が", "", "\U0001f600", "寝る"],
        ),
        ("one two", ["one", "<unk>", "two"], ["one", "", "two"]),
        ("Cafe\u0301 noir", ["Cafe\u0301", "noir"], ["Cafe\u0301", "noir"]),
        ("Cafe\u0301 ein \u1112\u1161", ["caf\xe9", "\ud558"], ["Cafe\u0301", "\u1112\u1161"]),
    ],
)
def test_spans_of_parts(text, parts, found):
    assert [text[start:end] for start, end in text_spans(text, parts)] == found
