"""Characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.errors import DataError
from tformer_cli.text.char import CharTokenizer, learn_characters
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.vocabulary import EOS_ID, NUM_SPECIAL, UNK_ID, Vocabulary


def learnt(lines: list[str], min_frequency: int = 1) -> CharTokenizer:
    content = learn_characters(lines, CharConfig(min_frequency=min_frequency))
    return CharTokenizer(content, Normalizer(), name="characters")


def test_characters_are_learnt_by_frequency_then_code_point() -> None:
    content = learn_characters(["banana", "bd"], CharConfig())
    assert Vocabulary.from_json(content, "characters").tokens[NUM_SPECIAL:] == (
        *("a", "b", "n"),
        "d",
    )


def test_characters_below_the_frequency_are_unknown() -> None:
    characters = learnt(["banana", "bd"], min_frequency=2)
    assert characters.encode("bad") == [17, 16, UNK_ID]
    assert characters.decode([17, 16, UNK_ID]) == "ba"
    assert characters.tokens([17, 16, UNK_ID, EOS_ID]) == ["b", "a", "<unk>", "</s>"]


@given(st.lists(st.text(min_size=1), min_size=1))
def test_characters_restore_the_normalized_line(lines: list[str]) -> None:
    normalized = [line for line in map(Normalizer(), lines) if line] or ["a"]
    characters = learnt(normalized)
    for line in normalized:
        ids = characters.encode(line)
        assert characters.decode(ids) == line
        assert all(NUM_SPECIAL <= i < characters.size for i in ids)
    assert characters.encode_batch(lines) == [characters.encode(line) for line in lines]


def test_characters_are_normalized_first() -> None:
    content = learn_characters(["ab"], CharConfig())
    lower = CharTokenizer(content, Normalizer(lowercase=True), name="characters")
    assert lower.decode(lower.encode("AB")) == "ab"


def test_characters_suppress_all_special_ids_but_the_end() -> None:
    assert set(learnt(["a"]).suppressed_ids) == set(range(NUM_SPECIAL)) - {EOS_ID}


def test_characters_that_are_all_rare_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        learnt(["abc"], min_frequency=2)
    assert str(caught.value) == (
        "tokenizer.min_frequency: no character of the text is that frequent; got 2; lower it"
    )
