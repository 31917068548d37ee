"""Vocabularies: ids, the file, and what is wrong with a broken one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.errors import CheckpointError
from tformer_cli.text.special_tokens import (
    BOS_ID,
    EOS_ID,
    MASK_ID,
    NUM_SPECIAL,
    PAD_ID,
    SEP_ID,
    SPECIAL_TOKENS,
    SUPPRESSED_IDS,
    UNK_ID,
)
from tformer_cli.text.tokenizer import with_eos
from tformer_cli.text.vocabulary import Vocabulary

WORDS = st.lists(st.text(min_size=1), unique=True).map(
    lambda words: [word for word in words if word not in SPECIAL_TOKENS]
)


def test_special_ids_are_the_ones_of_every_tokenizer() -> None:
    spelled = {
        PAD_ID: "<pad>",
        UNK_ID: "<unk>",
        BOS_ID: "<s>",
        EOS_ID: "</s>",
        MASK_ID: "<mask>",
        SEP_ID: "<sep>",
        6: "<tag_6>",
        15: "<tag_15>",
    }
    assert {i: SPECIAL_TOKENS[i] for i in spelled} == spelled
    assert list(spelled)[:6] == [0, 1, 2, 3, 4, 5]
    assert len(SPECIAL_TOKENS) == NUM_SPECIAL == 16


def test_unemitted_ids_are_the_special_ones_but_the_end() -> None:
    assert sorted({*SUPPRESSED_IDS, EOS_ID}) == list(range(NUM_SPECIAL))
    assert EOS_ID not in SUPPRESSED_IDS


def test_a_source_ends_with_eos_unless_it_is_empty() -> None:
    assert with_eos((17, 16)) == [17, 16, EOS_ID]
    assert with_eos([]) == []


@given(WORDS)
def test_vocabulary_gives_words_the_ids_behind_the_special_ones(words: list[str]) -> None:
    vocabulary = Vocabulary.of(words)
    assert [vocabulary.id_of(word) for word in words] == [
        NUM_SPECIAL + index for index in range(len(words))
    ]
    assert len(vocabulary) == NUM_SPECIAL + len(words)
    assert vocabulary.id_of("a word that is not there, surely") == UNK_ID


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_vocabulary_has_no_special_id_for_text(token: str) -> None:
    assert Vocabulary.of(["a", token]).id_of(token) == UNK_ID


def test_vocabulary_of_words_leaves_out_what_looks_special() -> None:
    assert Vocabulary.of(["a", "</s>", "b"]).tokens == (*SPECIAL_TOKENS, "a", "b")


@given(WORDS)
def test_vocabulary_file_brings_back_any_words(words: list[str]) -> None:
    vocabulary = Vocabulary.of(words)
    assert Vocabulary.from_json(vocabulary.to_json(), "words.json") == vocabulary


def test_vocabulary_file_has_one_readable_token_a_line() -> None:
    lines = Vocabulary.of(["weiß", "a b", "\n"]).to_json().decode().split("\n")
    assert lines[0] == "["
    assert lines[1] == '"<pad>",'
    assert lines[17:] == ['"weiß",', '"a b",', '"\\n"', "]", ""]


DAMAGED = {
    b"": "Expecting value: line 1 column 1 (char 0)",
    b"\xff": "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    b'{"a": 1}': "something other than a list of strings",
    b"[1, 2]": "something other than a list of strings",
    b'["a", "b"]': "the special tokens must come first",
    json.dumps([*SPECIAL_TOKENS, "a", "b", "a"]).encode(): "the token 'a' is there twice",
    json.dumps([*SPECIAL_TOKENS, "</s>"]).encode(): "the token '</s>' is there twice",
}


@pytest.mark.parametrize("content", DAMAGED)
def test_vocabulary_file_that_is_damaged_is_refused(content: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        Vocabulary.from_json(content, "run/source.json")
    assert str(caught.value) == (
        f"run/source.json: is not a vocabulary ({DAMAGED[content]}); "
        "restore the file, or train again"
    )
