import pytest
from hypothesis import given
from hypothesis import strategies as st
from text.test_char import learnt as learnt_characters
from text.test_subword import PLAIN
from text.test_word import tokenizer as word_tokenizer

from tformer_cli.text.words import (
    aligned_units,
    first_word_indices,
    pharaoh,
    unit_indices,
    word_indices,
)


@pytest.mark.parametrize(
    ("spelled", "numbers"),
    [
        ([b" the", b" gre", b"en", b" house", b"."], [0, 1, 1, 2, 2]),
        # U+00FC byte by byte, behind a blank of its own.
        ([b" ", b"\xc3", b"\xbc", b"ber", b" ", b" a"], [None, 0, 0, 0, None, 1]),
        ([b"a", b" ", b"bc", b" "], [0, None, 1, None]),
        ([b" ", b"\t"], [None, None]),
        ([b"a b", b"c", b"d"], [0, 1, 1]),
        ([], []),
    ],
)
def test_word_numbers_count_what_stands_between_blanks(spelled, numbers):
    assert word_indices(spelled) == numbers


@given(st.lists(st.text("ab \t\u00a0\u3000é", min_size=1, max_size=3).map(str.encode), max_size=8))
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
    assert {*word_indices(spelled)} - {None} == {*range(len(words))}


def test_pieces_go_on_counting_and_without_blanks_each_token_counts():
    characters = learnt_characters(["ab cd"])
    pieces = [characters.encode(text) for text in ("ab c", "", "d a")]
    numbers = [0, 0, None, 1, 2, None, 3]
    assert unit_indices(characters, pieces, [0, 0, 2], " ") == numbers
    assert unit_indices(characters, pieces, [0, 0, 1], " ") == [0, 0, None, 1, 1, None, 2]
    assert unit_indices(characters, pieces, [0, 0, 2], "") == [*range(7)]


@given(st.lists(st.text("ab \t\u00a0é", min_size=1, max_size=4), max_size=8))
def test_a_piece_begins_in_the_word_of_its_first_letter(pieces):
    for place, (piece, number) in enumerate(zip(pieces, first_word_indices(pieces), strict=True)):
        if letters := piece.encode().split():
            before = "".join(pieces[:place]).encode() + piece.encode().partition(letters[0])[0]
            assert number == len((before + b"x").split()) - 1


@pytest.mark.parametrize(
    ("links", "source", "target", "pairs"),
    [
        ([1, 0, 1, 2], [0, 1, 1], [0, 1, 1, 2], ((0, 1), (1, 0), (1, 1), (1, 2))),
        # Blanks: of the source for the word behind, where there is one; of the target not at all.
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
    characters = learnt_characters(["ab cd"])
    ids = characters.encode("ab c")
    assert characters.to_bytes(ids) == [b"a", b"b", b" ", b"c"]
    words = word_tokenizer()
    assert word_indices(words.to_bytes(words.encode("the dog . the"))) == [0, 1, 2, 3]
