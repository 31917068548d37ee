"""Subword tokenizers by sentencepiece, learned here or imported from Marian."""

import base64
import io
import json
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from tformer_cli.config.schema.tokenizer import MarianConfig, SubwordConfig
from tformer_cli.errors import CheckpointError, DataError
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import (
    EOS_ID,
    NUM_SPECIAL,
    SPECIAL_TOKENS,
    SUPPRESSED_IDS,
    UNK_ID,
)
from tformer_cli.text.subword import (
    MarianTokenizer,
    SubwordTokenizer,
    imported_file,
    learn_subwords,
    marian_file,
    reservoir_sample,
)
from tformer_cli.text.t5 import T5Tokenizer
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers

WORDS = ["the", "a", "big", "green", "dog", "cat", "house", "über", "Straße", ".", ",", "!"]
LINES = [" ".join(random.Random(i).choices(WORDS, k=7)) for i in range(300)]
CONFIG = SubwordConfig(vocab_size=305)
Algorithm = Literal["bpe", "unigram"]
ALGORITHMS: tuple[Algorithm, ...] = ("bpe", "unigram")
MODELS = {name: learn_subwords(LINES, replace(CONFIG, algorithm=name)) for name in ALGORITHMS}
PLAIN = {
    name: SubwordTokenizer(model, Normalizer(), name="model") for name, model in MODELS.items()
}


@pytest.fixture(params=ALGORITHMS)
def tokenizer(request: pytest.FixtureRequest) -> SubwordTokenizer:
    return PLAIN[request.param]


def restored(line: str) -> str:
    """What decode(encode(line)) promises."""
    normalized = Normalizer()(line).replace("\u2581", " ")
    return " ".join(part for part in normalized.split(" ") if part)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(line=st.text() | st.text(alphabet=" a\u2581\u2585\u3000\t"))
def test_subwords_restore_any_text_except_runs_of_spaces(algorithm: Algorithm, line: str) -> None:
    tokenizer = PLAIN[algorithm]
    ids = tokenizer.encode(line)
    assert tokenizer.decode(ids) == restored(line)
    assert all(NUM_SPECIAL <= i < tokenizer.size for i in ids)


@pytest.mark.parametrize(
    "line",
    [
        "nul \0 inside",
        "bell \a and \x1b[31mcolour\x1b[0m",
        "tab\there",
        "no-break\u00a0space",
        "\ufeffmark",
        "\ufffe \uffff \U0010ffff",
        "line separator \u2028 and \x85 and \x0b",
        "e\u0301 stays decomposed",
        "漢字 👩‍👩‍👧 \u202eright to left",
        "</s> <s> <pad> <unk> <mask> <sep> <tag_7>",
        "<0x0A> <0xFF> @@ &lt; |||",
    ],
)
def test_subwords_restore_odd_characters(tokenizer: SubwordTokenizer, line: str) -> None:
    assert tokenizer.decode(tokenizer.encode(line)) == line


@pytest.mark.parametrize("line", ["", " ", "   ", "\t", "\u3000"])
def test_subwords_of_a_line_of_whitespace_are_none(tokenizer: SubwordTokenizer, line: str) -> None:
    assert tokenizer.encode(line) == []
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_subwords_of_text_are_never_special(tokenizer: SubwordTokenizer, token: str) -> None:
    for line in (token, f"dog {token} cat", f"{token}{token}"):
        assert min(tokenizer.encode(line)) >= NUM_SPECIAL


def test_subwords_batch_is_each_line_alone(tokenizer: SubwordTokenizer) -> None:
    lines = [*LINES[:20], "", "unseen 漢字"]
    assert tokenizer.encode_batch(lines) == [tokenizer.encode(line) for line in lines]
    assert tokenizer.encode_batch([]) == []


def test_subwords_are_normalized_first() -> None:
    lower = SubwordTokenizer(MODELS["bpe"], Normalizer(lowercase=True), name="model")
    assert lower.encode("The DOG") == PLAIN["bpe"].encode("the dog")
    assert lower.encode_batch(["The DOG"]) == [PLAIN["bpe"].encode("the dog")]


def test_subwords_decode_skips_special_ids(tokenizer: SubwordTokenizer) -> None:
    ids = tokenizer.encode("the dog")
    assert tokenizer.decode([*range(NUM_SPECIAL), *ids, EOS_ID]) == "the dog"


def test_subwords_decode_never_breaks_a_line(tokenizer: SubwordTokenizer) -> None:
    line_breaks = [tokenizer.byte_ids[ord(c)] for c in "\n\r"]
    assert tokenizer.tokens(line_breaks) == ["<0x0A>", "<0x0D>"]
    dog = tokenizer.encode("dog")
    assert tokenizer.decode([*dog, *line_breaks, *dog]) == "dog" + "  " + " dog"


def test_subwords_decode_replaces_stray_bytes(tokenizer: SubwordTokenizer) -> None:
    assert tokenizer.decode([tokenizer.byte_ids[0xFF]]) == "\ufffd"


def test_subwords_suppress_what_no_translation_contains(tokenizer: SubwordTokenizer) -> None:
    suppressed = tokenizer.tokens(tokenizer.suppressed_ids)
    assert set(suppressed) == {*SPECIAL_TOKENS, "<0x0A>", "<0x0D>"} - {"</s>"}


def test_subwords_tokens_joined_are_the_line(tokenizer: SubwordTokenizer) -> None:
    tokens = tokenizer.tokens(tokenizer.encode("the big house"))
    assert "".join(tokens) == "▁the▁big▁house"
    assert tokenizer.tokens([EOS_ID]) == ["</s>"]


def test_subwords_take_linear_time(tokenizer: SubwordTokenizer) -> None:
    letters = random.Random(1).choices("thedogcatu", k=100_000)
    started = time.perf_counter()
    for line in ("a" * 100_000, "".join(letters)):
        assert tokenizer.decode(tokenizer.encode(line)) == line
    # 0.1 s is usual; in quadratic time it would be minutes.
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_subwords_learned_twice_are_the_same_bytes(algorithm: Algorithm) -> None:
    assert learn_subwords(LINES, replace(CONFIG, algorithm=algorithm)) == MODELS[algorithm]


def test_subwords_have_the_configured_size(tokenizer: SubwordTokenizer) -> None:
    assert tokenizer.size == CONFIG.vocab_size


def test_subwords_without_byte_fallback_know_the_unknown() -> None:
    config = replace(CONFIG, vocab_size=80, byte_fallback=False)
    tokenizer = SubwordTokenizer(learn_subwords(LINES, config), Normalizer(), name="model")
    assert list(tokenizer.byte_ids) == []
    assert UNK_ID in tokenizer.encode("dog 漢")
    assert tokenizer.decode(tokenizer.encode("dog 漢 dog")) == "dog  dog"
    assert set(tokenizer.tokens(tokenizer.suppressed_ids)) == {*SPECIAL_TOKENS} - {"</s>"}


def test_subwords_coverage_decides_which_characters_have_a_piece() -> None:
    lines = [*LINES, "ж"]
    for coverage, has_piece in ((1.0, True), (0.999, False)):
        model = learn_subwords(lines, replace(CONFIG, character_coverage=coverage))
        tokenizer = SubwordTokenizer(model, Normalizer(), name="model")
        assert ("ж" in tokenizer.tokens(tokenizer.encode("ж"))[-1]) is has_piece


def test_subwords_learn_all_of_a_long_line() -> None:
    line = "a" * 3500 + "ж" + "b" * 3500 + "щ"
    tokenizer = SubwordTokenizer(learn_subwords([*LINES, line], CONFIG), Normalizer(), name="model")
    for letter in "жщ":
        assert letter in tokenizer.tokens(tokenizer.encode(letter))[-1]


def test_subwords_learn_from_a_line_with_the_reserved_character() -> None:
    model = learn_subwords([*LINES, "ж\u2585щ"], CONFIG)
    tokenizer = SubwordTokenizer(model, Normalizer(), name="model")
    for letter in "жщ":
        assert letter in tokenizer.tokens(tokenizer.encode(letter))[-1]
    assert tokenizer.decode(tokenizer.encode("ж\u2585щ")) == "ж\u2585щ"


def test_subwords_learn_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    learn_subwords(LINES, CONFIG)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_subwords_refuse_a_vocabulary_larger_than_the_text(algorithm: Algorithm) -> None:
    config = replace(CONFIG, algorithm=algorithm, vocab_size=9000)
    with pytest.raises(DataError) as caught:
        learn_subwords(LINES, config)
    start = "tokenizer.vocab_size: is larger than the "
    end = " that the text allows (9000); make it smaller, or give more text"
    message = str(caught.value)
    assert message.startswith(start)
    assert message.endswith(end)
    largest = int(message.removeprefix(start).removesuffix(end))
    model = learn_subwords(LINES, replace(config, vocab_size=largest))
    assert SubwordTokenizer(model, Normalizer(), name="model").size == largest


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_subwords_refuse_a_vocabulary_smaller_than_the_alphabet(algorithm: Algorithm) -> None:
    # Special pieces, bytes, the characters and the whitespace mark.
    smallest = 16 + 256 + len(set("".join(LINES)) - {" "}) + 1
    config = replace(CONFIG, algorithm=algorithm, vocab_size=smallest - 1)
    with pytest.raises(DataError) as caught:
        learn_subwords(LINES, config)
    assert str(caught.value) == (
        f"tokenizer.vocab_size: is smaller than the {smallest} that the characters of the text "
        f"need ({smallest - 1}); enlarge it, or lower tokenizer.character_coverage"
    )


def test_subwords_of_a_text_without_any_say_so() -> None:
    with pytest.raises(DataError, match=r"^tokenizer: sentencepiece found no vocabulary \("):
        learn_subwords(["\u2581"], CONFIG)


def test_subword_model_that_is_damaged_is_refused() -> None:
    model = MODELS["bpe"]
    no_utf8 = model.replace(b"<mask>", b"<m\xffsk>", 1), model.replace(b"<0x23>", b"\xff0x23>")
    for content in (b"junk", model[:100], model[:-1], *no_utf8):
        with pytest.raises(CheckpointError) as caught:
            SubwordTokenizer(content, Normalizer(), name="run/shared.model")
        assert str(caught.value) == (
            f"run/shared.model: is not a sentencepiece model ({len(content):,} bytes); "
            "restore the file, or train again"
        )


def test_subword_model_that_is_empty_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        SubwordTokenizer(b"", Normalizer(), name="run/shared.model")
    assert str(caught.value) == (
        "run/shared.model: is not a sentencepiece model (no bytes); "
        "restore the file, or train again"
    )
    assert capfd.readouterr() == ("", "")


def test_subword_model_of_somebody_else_is_refused() -> None:
    model = MODELS["bpe"].replace(b"<tag_9>", b"<tug_9>")
    found = ", ".join(SPECIAL_TOKENS).replace("<tag_9>", "<tug_9>")
    with pytest.raises(CheckpointError) as caught:
        SubwordTokenizer(model, Normalizer(), name="run/shared.model")
    assert str(caught.value) == (
        f"run/shared.model: has other special tokens than tformer's ({found}); "
        "restore the file, or train again"
    )


def test_reservoir_keeps_a_short_stream_in_order() -> None:
    assert reservoir_sample(iter(range(7)), 7, seed=3) == (list(range(7)), 7)
    assert reservoir_sample(iter([]), 7, seed=3) == ([], 0)


def test_reservoir_is_decided_by_its_seed() -> None:
    first, num_items = reservoir_sample(range(1000), 11, seed=3)
    assert reservoir_sample(range(1000), 11, seed=3) == (first, 1000)
    assert reservoir_sample(range(1000), 11, seed=4) != (first, 1000)
    assert len(set(first)) == 11
    assert num_items == 1000


def test_reservoir_draws_every_item_alike() -> None:
    drawn = Counter(
        item for seed in range(3000) for item in reservoir_sample(range(13), 5, seed=seed)[0]
    )
    # 3000 draws with probability 5/13: mean 1154, standard deviation 27; six of them are 160.
    assert all(abs(drawn[item] - 3000 * 5 / 13) < 160 for item in range(13))


MARIAN_LINES = ["the old dog sleeps", "a cat sat on the mat", "dogs and cats"]


def marian_sentencepiece(*, byte_fallback: bool = False) -> bytes:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(MARIAN_LINES),
        model_writer=model,
        vocab_size=310 if byte_fallback else 40,
        byte_fallback=byte_fallback,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


MODEL = marian_sentencepiece()
PROCESSOR = SentencePieceProcessor(model_proto=MODEL)
PIECES = [PROCESSOR.id_to_piece(i) for i in range(3, PROCESSOR.get_piece_size())][::-1]


def marian_tokenizer(pieces: list[str], model: bytes = MODEL) -> MarianTokenizer:
    return MarianTokenizer(marian_file(model, pieces), Normalizer(), name="x.json")


def test_an_id_is_the_place_of_a_piece_in_the_list():
    ours = marian_tokenizer([*PIECES, "ß"])
    ids = ours.encode("the dog")
    assert ours.tokens(ids) == PROCESSOR.encode("the dog", out_type=str)
    assert ids == [NUM_SPECIAL + PIECES.index(piece) for piece in ours.tokens(ids)]
    assert ours.size == NUM_SPECIAL + len(PIECES) + 1


def test_a_piece_that_the_list_lacks_is_unknown_and_one_that_only_it_has_is_found():
    cut = PROCESSOR.encode("the", out_type=str)
    ours = marian_tokenizer([*(piece for piece in PIECES if piece != cut[1]), "ß"])
    assert [i == UNK_ID for i in ours.encode("the")] == [piece == cut[1] for piece in cut]
    assert ours.encode("ß")[-1] == ours.size - 1
    assert ours.encode("ü")[-1] == UNK_ID


def test_a_language_code_is_one_token_at_the_beginning_alone():
    ours = marian_tokenizer([*PIECES, ">>de<<"])
    code = ours.size - 1
    assert ours.encode(">>de<< the dog") == [code, *ours.encode("the dog")]
    assert ours.encode(">>fr<< the dog") == [UNK_ID, *ours.encode("the dog")]
    assert code not in ours.encode("the >>de<<")
    assert ours.tokens([code]) == [">>de<<"]


@given(st.lists(st.sampled_from(sorted(set(" ".join(MARIAN_LINES).split()))), max_size=7))
def test_text_comes_back(words):
    ours = marian_tokenizer(PIECES)
    line = " ".join(words)
    ids = ours.encode(line)
    assert ours.encode_batch([line, "dogs"]) == [ids, ours.encode("dogs")]
    assert ours.decode(ids) == line
    assert b"".join(ours.to_bytes(ids)).decode().strip() == line


def test_special_tokens_are_no_text():
    ours = marian_tokenizer(PIECES)
    ids = ours.encode("the </s> dog <pad>")
    assert not set(ids) & (set(range(NUM_SPECIAL)) - {UNK_ID})
    assert ours.decode([2, *ours.encode("the dog"), 3, 0]) == "the dog"
    assert ours.suppressed_ids == SUPPRESSED_IDS


def test_bytes_are_spelled_and_line_breaks_never_come():
    model = marian_sentencepiece(byte_fallback=True)
    processor = SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
    ours = marian_tokenizer(pieces, model)
    ids = ours.encode("ü")
    assert ours.tokens(ids)[-2:] == ["<0xC3>", "<0xBC>"]
    assert b"".join(ours.to_bytes(ids)) == " ü".encode()
    assert ours.decode(ids) == "ü"
    breaks = [NUM_SPECIAL + pieces.index(piece) for piece in ("<0x0A>", "<0x0D>")]
    assert ours.suppressed_ids == (*SUPPRESSED_IDS, *breaks)
    assert ours.decode([*ours.encode("a"), *breaks, *ours.encode("b")]) == "a   b"


def test_both_sides_are_saved_though_they_share_a_vocabulary(tmp_path: Path):
    others = [*PIECES, "ß"]
    saved = Tokenizers(marian_tokenizer(others), marian_tokenizer(others), shared=True)
    saved.save(tmp_path / "tokenizer")
    assert {file.name for file in (tmp_path / "tokenizer").iterdir()} == {
        "tokenizer.json",
        "source.json",
        "target.json",
    }
    loaded = load_tokenizers(tmp_path / "tokenizer")
    assert loaded.fingerprint == saved.fingerprint
    assert loaded.source.encode("the ß") == saved.source.encode("the ß")


def test_no_text_teaches_them():
    with pytest.raises(DataError) as caught:
        build_tokenizers(MarianConfig(), lambda: [("a", "b")], 1)
    assert str(caught.value) == (
        "tokenizer.kind: comes with an imported model, and is not learned from text (marian); "
        "name the run of `tformer import` in training.init_from"
    )


ENCODED = base64.b64encode(MODEL).decode()


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ("{", "JSONDecodeError('Expecting property name enclosed in double quotes: "),
        ("[]", "TypeError('list indices must be integers or slices, not str')"),
        ('{"pieces": []}', "KeyError('sentencepiece')"),
        ('{"sentencepiece": "?", "pieces": []}', "Error('Only base64 data is allowed')"),
        (
            json.dumps({"sentencepiece": ENCODED, "pieces": [1]}),
            "TypeError('something other than a list of strings')",
        ),
    ],
)
def test_another_file_is_refused(content, got):
    with pytest.raises(CheckpointError) as caught:
        MarianTokenizer(content.encode(), Normalizer(), name="x.json")
    message = str(caught.value)
    assert message.startswith(f"x.json: is not the vocabulary of a Marian model ({got}")
    assert message.endswith("; restore the file, or import the model again")


@pytest.mark.parametrize("special_rows", [{"<unk>": 2}, [], None])
def test_another_file_than_that_of_t5_is_refused(special_rows):
    with pytest.raises(CheckpointError) as caught:
        T5Tokenizer(
            imported_file(MODEL, pieces=[], special_rows=special_rows), Normalizer(), name="x.json"
        )
    assert str(caught.value) == (
        "x.json: is not the vocabulary of a T5 model; restore the file, or import the model again"
    )


@pytest.mark.parametrize(("model", "got"), [(b"", "no bytes"), (b"\xffx", "2 bytes")])
def test_another_model_is_refused(model, got):
    with pytest.raises(CheckpointError) as caught:
        marian_tokenizer(PIECES, model)
    assert str(caught.value) == (
        f"x.json: is not a sentencepiece model ({got}); restore the file, or import the model again"
    )
