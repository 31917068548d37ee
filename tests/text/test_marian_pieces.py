"""Pieces of a Marian model: cut by sentencepiece, counted by a list of their own."""

import base64
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from tformer_cli.config.schema.tokenizer import MarianConfig
from tformer_cli.errors import CheckpointError, DataError
from tformer_cli.text.marian import MarianTokenizer, marian_file
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers
from tformer_cli.text.vocabulary import NUM_SPECIAL, SUPPRESSED_IDS, UNK_ID

LINES = ["the old dog sleeps", "a cat sat on the mat", "dogs and cats"]


def sentencepiece(*, byte_fallback: bool = False) -> bytes:
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=310 if byte_fallback else 40,
        byte_fallback=byte_fallback,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


MODEL = sentencepiece()
PROCESSOR = SentencePieceProcessor(model_proto=MODEL)
PIECES = [PROCESSOR.id_to_piece(i) for i in range(3, PROCESSOR.get_piece_size())][::-1]


def tokenizer(pieces: list[str], model: bytes = MODEL) -> MarianTokenizer:
    return MarianTokenizer(marian_file(model, pieces), Normalizer(), name="x.json")


def test_an_id_is_the_place_of_a_piece_in_the_list():
    ours = tokenizer([*PIECES, "ß"])
    ids = ours.encode("the dog")
    assert ours.tokens(ids) == PROCESSOR.encode("the dog", out_type=str)
    assert ids == [NUM_SPECIAL + PIECES.index(piece) for piece in ours.tokens(ids)]
    assert ours.size == NUM_SPECIAL + len(PIECES) + 1


def test_a_piece_that_the_list_lacks_is_unknown_and_one_that_only_it_has_is_found():
    cut = PROCESSOR.encode("the", out_type=str)
    ours = tokenizer([*(piece for piece in PIECES if piece != cut[1]), "ß"])
    assert [i == UNK_ID for i in ours.encode("the")] == [piece == cut[1] for piece in cut]
    assert ours.encode("ß")[-1] == ours.size - 1
    assert ours.encode("ü")[-1] == UNK_ID


def test_a_language_code_is_one_token_at_the_beginning_alone():
    ours = tokenizer([*PIECES, ">>de<<"])
    code = ours.size - 1
    assert ours.encode(">>de<< the dog") == [code, *ours.encode("the dog")]
    assert ours.encode(">>fr<< the dog") == [UNK_ID, *ours.encode("the dog")]
    assert code not in ours.encode("the >>de<<")
    assert ours.tokens([code]) == [">>de<<"]


@given(st.lists(st.sampled_from(sorted(set(" ".join(LINES).split()))), max_size=7))
def test_text_comes_back(words):
    ours = tokenizer(PIECES)
    line = " ".join(words)
    ids = ours.encode(line)
    assert ours.encode_batch([line, "dogs"]) == [ids, ours.encode("dogs")]
    assert ours.decode(ids) == line
    assert b"".join(ours.to_bytes(ids)).decode().strip() == line


def test_special_tokens_are_no_text():
    ours = tokenizer(PIECES)
    ids = ours.encode("the </s> dog <pad>")
    assert not set(ids) & (set(range(NUM_SPECIAL)) - {UNK_ID})
    assert ours.decode([2, *ours.encode("the dog"), 3, 0]) == "the dog"
    assert ours.suppressed_ids == SUPPRESSED_IDS


def test_bytes_are_spelled_and_line_breaks_never_come():
    model = sentencepiece(byte_fallback=True)
    processor = SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
    ours = tokenizer(pieces, model)
    ids = ours.encode("ü")
    assert ours.tokens(ids)[-2:] == ["<0xC3>", "<0xBC>"]
    assert b"".join(ours.to_bytes(ids)) == " ü".encode()
    assert ours.decode(ids) == "ü"
    breaks = [NUM_SPECIAL + pieces.index(piece) for piece in ("<0x0A>", "<0x0D>")]
    assert ours.suppressed_ids == (*SUPPRESSED_IDS, *breaks)
    assert ours.decode([*ours.encode("a"), *breaks, *ours.encode("b")]) == "a   b"


def test_both_sides_are_saved_though_they_share_a_vocabulary(tmp_path: Path):
    others = [*PIECES, "ß"]
    saved = Tokenizers(tokenizer(others), tokenizer(others), shared=True)
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
        "tokenizer.kind: comes with an imported model, and is not learnt from text; got marian; "
        "name the run of `tformer import` in training.initialize_from"
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
    assert message.startswith(f"x.json: is not the vocabulary of a Marian model; got {got}")
    assert message.endswith("; restore the file, or import the model again")


@pytest.mark.parametrize(("model", "got"), [(b"", "no bytes"), (b"\xffx", "2 bytes")])
def test_another_model_is_refused(model, got):
    with pytest.raises(CheckpointError) as caught:
        tokenizer(PIECES, model)
    assert str(caught.value) == (
        f"x.json: is not a sentencepiece model; got {got}; "
        "restore the file, or import the model again"
    )
