"""Tokenizers of words and of characters."""

import functools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.tokenizer import CharConfig, WordConfig
from tformer_cli.errors import DataError
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import EOS_ID, NUM_SPECIAL, SPECIAL_TOKENS, UNK_ID
from tformer_cli.text.symbol import CharTokenizer, WordTokenizer, learn_characters, learn_words
from tformer_cli.text.vocabulary import Vocabulary


def learned_characters(lines: list[str], min_frequency: int = 1) -> CharTokenizer:
    content = learn_characters(lines, CharConfig(min_frequency=min_frequency))
    return CharTokenizer(content, Normalizer(), name="characters")


def test_characters_are_learned_by_frequency_then_code_point() -> None:
    content = learn_characters(["banana", "bd"], CharConfig())
    assert Vocabulary.from_json(content, "characters").tokens[NUM_SPECIAL:] == (
        *("a", "b", "n"),
        "d",
    )


def test_characters_below_the_frequency_are_unknown() -> None:
    characters = learned_characters(["banana", "bd"], min_frequency=2)
    assert characters.encode("bad") == [17, 16, UNK_ID]
    assert characters.decode([17, 16, UNK_ID]) == "ba"
    assert characters.tokens([17, 16, UNK_ID, EOS_ID]) == ["b", "a", "<unk>", "</s>"]


@given(st.lists(st.text(min_size=1), min_size=1))
def test_characters_restore_the_normalized_line(lines: list[str]) -> None:
    normalized = [line for line in map(Normalizer(), lines) if line] or ["a"]
    characters = learned_characters(normalized)
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
    assert set(learned_characters(["a"]).suppressed_ids) == set(range(NUM_SPECIAL)) - {EOS_ID}


def test_characters_that_are_all_rare_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        learned_characters(["abc"], min_frequency=2)
    assert str(caught.value) == (
        "tokenizer.min_frequency: no character of the text is that frequent (2); lower it"
    )


LINES = ["The dog sees a cat.", "A cat; the dog's cat!", "b b b c c"]


def learned_words(config: WordConfig) -> tuple[str, ...]:
    return Vocabulary.from_json(learn_words(LINES, config), "words").tokens[NUM_SPECIAL:]


@functools.cache
def tokenizer() -> WordTokenizer:
    content = learn_words(LINES, WordConfig(min_frequency=1))
    return WordTokenizer(content, Normalizer(), name="words")


def test_words_are_learned_by_frequency_then_alphabet() -> None:
    assert learned_words(WordConfig(min_frequency=1)) == (
        *("b", "cat"),
        *("a", "c", "dog", "the"),
        *("!", "'", ".", "s", "sees"),
    )


def test_words_below_the_frequency_are_left_out() -> None:
    assert learned_words(WordConfig(min_frequency=2)) == ("b", "cat", "a", "c", "dog", "the")
    assert learned_words(WordConfig(min_frequency=3)) == ("b", "cat")


def test_words_beyond_the_size_are_left_out() -> None:
    lines = [f"w{i:03}" for i in range(100)]
    content = learn_words(lines, WordConfig(min_frequency=1, max_size=32))
    assert Vocabulary.from_json(content, "words").tokens == (*SPECIAL_TOKENS, *lines[:16])


def test_words_are_split_as_basic_english_does() -> None:
    words = tokenizer()
    ids = words.encode('The DOG\'s cat, "the" bird')
    assert words.tokens(ids) == ["the", "dog", "'", "s", "cat", "<unk>", "the", "<unk>"]
    assert words.decode(ids) == "the dog ' s cat the"


def test_words_of_text_are_never_special_but_unknown() -> None:
    words = tokenizer()
    for token in SPECIAL_TOKENS:
        assert set(words.encode(f"cat {token} cat")) == {UNK_ID, *words.encode("cat")}


def test_words_that_look_special_are_not_learned() -> None:
    content = learn_words(["</s> </s> cat cat"], WordConfig())
    assert Vocabulary.from_json(content, "words").tokens == (*SPECIAL_TOKENS, "cat")


@given(st.text())
def test_words_of_any_text_are_ids_and_one_line(line: str) -> None:
    words = tokenizer()
    ids = words.encode(line)
    assert all(i == UNK_ID or NUM_SPECIAL <= i < words.size for i in ids)
    assert len(words.decode(ids).splitlines()) <= 1
    assert words.encode_batch([line, line]) == [ids, ids]


def test_words_suppress_all_special_ids_but_the_end() -> None:
    assert set(tokenizer().suppressed_ids) == set(range(NUM_SPECIAL)) - {EOS_ID}


def test_words_that_are_all_rare_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        learn_words(LINES, WordConfig(min_frequency=5))
    assert str(caught.value) == (
        "tokenizer.min_frequency: no word of the text is that frequent (5); lower it"
    )


def test_torchtext_is_imported_for_words_only() -> None:
    script = """if True:
        import sys
        from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig, WordConfig
        from tformer_cli.text.tokenizer import build_tokenizers
        pairs = lambda: [("the dog", "der Hund")] * 2
        for config in (CharConfig(), SubwordConfig(vocab_size=290)):
            build_tokenizers(config, pairs, 1).source.encode("the dog")
        print(sorted({"torch", "torchtext"} & set(sys.modules)))
    """
    command = [sys.executable, "-W", "error", "-c", script]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"
