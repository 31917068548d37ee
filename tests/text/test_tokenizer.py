"""The tokenizers of a run: built, saved, loaded, and told apart."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tformer_cli.config.schema.tokenizer import (
    CharConfig,
    SubwordConfig,
    TokenizerConfig,
    WordConfig,
)
from tformer_cli.errors import CheckpointError, DataError
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, SEP_ID
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers, load_tokenizers

PAIRS = [
    ("The small dog sees the big tree.", "Der kleine Hund sieht den großen Baum."),
    ("The cat sleeps in the house.", "Die Katze schläft im Haus."),
    ("A bird sings.", "Ein Vogel singt."),
] * 5
SUBWORD = SubwordConfig(vocab_size=310)
CONFIGS: dict[str, TokenizerConfig] = {
    "subword": SUBWORD,
    "subwords": replace(
        SUBWORD, vocab_size=298, shared=False, algorithm="unigram", lowercase="target"
    ),
    "word": WordConfig(shared=True),
    "words": WordConfig(nfkc="source"),
    "char": CharConfig(lowercase="source"),
    "chars": CharConfig(shared=False, nfkc="both"),
}
FILES = {
    "subword": {"shared.model"},
    "subwords": {"source.model", "target.model"},
    "word": {"shared.json"},
    "words": {"source.json", "target.json"},
    "char": {"shared.json"},
    "chars": {"source.json", "target.json"},
}


def build(config: TokenizerConfig, pairs: list[tuple[str, str]] = PAIRS) -> Tokenizers:
    return build_tokenizers(config, lambda: iter(pairs), 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_tokenizers_loaded_are_the_ones_saved(name: str, tmp_path: Path) -> None:
    built = build(CONFIGS[name])
    built.save(tmp_path / "tokenizer")
    loaded = load_tokenizers(tmp_path / "tokenizer")
    assert {file.name for file in (tmp_path / "tokenizer").iterdir()} == {
        "tokenizer.json",
        *FILES[name],
    }
    assert loaded.fingerprint == built.fingerprint
    assert loaded.shared == built.shared == CONFIGS[name].shared
    for line in (*PAIRS[0], "UPPER ﬁ unseen"):
        assert loaded.source.encode(line) == built.source.encode(line)
        assert loaded.target.encode(line) == built.target.encode(line)
    assert loaded.target.suppressed_ids == built.target.suppressed_ids


@pytest.mark.parametrize("name", CONFIGS)
def test_tokenizers_built_twice_are_the_same(name: str) -> None:
    assert build(CONFIGS[name]).fingerprint == build(CONFIGS[name]).fingerprint


def test_fingerprint_changes_with_text_settings_and_sides() -> None:
    swapped = [(target, source) for source, target in PAIRS]
    lowercase = CharConfig()
    fingerprints = [
        build(CONFIGS["chars"]).fingerprint,
        build(CONFIGS["chars"], swapped).fingerprint,
        build(CONFIGS["chars"], PAIRS[:1]).fingerprint,
        build(CONFIGS["char"]).fingerprint,
        build(lowercase).fingerprint,
    ]
    assert len(set(fingerprints)) == len(fingerprints)


def test_fingerprint_tells_vocabularies_of_one_length_apart() -> None:
    first, second = (build(CONFIGS["char"], [(text, text)]) for text in ("abc", "abd"))
    assert len(first.source.content) == len(second.source.content)
    assert first.fingerprint != second.fingerprint


def test_shared_vocabulary_has_the_same_ids_on_both_sides() -> None:
    tokenizers = build(CONFIGS["char"])
    assert tokenizers.source.encode("Baum") == tokenizers.target.encode("baum")
    assert tokenizers.target.decode(tokenizers.target.encode("Baum")) == "Baum"


def test_separate_vocabularies_know_their_own_side_only() -> None:
    tokenizers = build(CONFIGS["chars"])
    assert tokenizers.source.decode(tokenizers.source.encode("große")) == "groe"
    assert tokenizers.target.decode(tokenizers.target.encode("große")) == "große"


def test_subwords_are_learned_from_a_sample_of_the_lines() -> None:
    letters = [(chr(0x430 + i), chr(0x3B1 + i)) for i in range(20)]
    tokenizers = build(replace(SUBWORD, sample_lines=3, vocab_size=279), letters)
    # 272 special pieces and bytes, the whitespace mark, and 3 letters of each side.
    pieces = [tokenizers.source.tokens(tokenizers.source.encode(source)) for source, _ in letters]
    assert sum(len(tokens) == 2 for tokens in pieces) == 3


def test_a_sample_of_lines_has_both_sides_of_a_pair() -> None:
    letters = [(chr(0x430 + i), chr(0x3B1 + i)) for i in range(20)]
    tokenizers = build(replace(SUBWORD, sample_lines=3, vocab_size=279), letters)
    is_learned = [
        [len(tokenizers.source.tokens(tokenizers.source.encode(letter))) == 2 for letter in pair]
        for pair in letters
    ]
    assert all(source == target for source, target in is_learned)


def test_pairs_are_streamed() -> None:
    begun, held = 0, 0

    def pairs() -> Iterator[tuple[str, str]]:
        nonlocal begun, held
        begun += 1
        for pair in PAIRS:
            held += 1
            yield pair

    build_tokenizers(CONFIGS["chars"], pairs, 1)
    assert (begun, held) == (2, 2 * len(PAIRS))


def test_shared_vocabulary_learns_from_both_sides_whatever_the_kind() -> None:
    for name in ("word", "char"):
        tokenizers = build(CONFIGS[name])
        assert tokenizers.source.size == tokenizers.target.size
        text = "der dog" if name == "word" else "ß"
        assert tokenizers.target.decode(tokenizers.target.encode(text)) == text


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("pairs", [[], [("", " "), ("\t", "\u3000")]])
def test_text_without_words_is_refused(name: str, pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(DataError) as caught:
        build(CONFIGS[name], pairs)
    assert str(caught.value) == (
        "data.train: no lines with text to learn a vocabulary from; name files with text"
    )


def test_saving_replaces_the_whole_folder(tmp_path: Path) -> None:
    build(CONFIGS["chars"]).save(tmp_path / "tokenizer")
    build(CONFIGS["char"]).save(tmp_path / "tokenizer")
    assert [folder.name for folder in tmp_path.iterdir()] == ["tokenizer"]
    assert {file.name for file in (tmp_path / "tokenizer").iterdir()} == {
        "tokenizer.json",
        "shared.json",
    }


@pytest.mark.parametrize("name", ["tokenizer.json", "shared.json"])
def test_a_pipe_in_place_of_a_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """Whoever reads it waits for ever."""
    build(CONFIGS["char"]).save(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CheckpointError) as caught:
        load_tokenizers(tmp_path / "tokenizer")
    assert str(caught.value) == (
        f"{file}: cannot be read (no regular file); restore the file, or train again"
    )


def test_header_file_is_pinned(tmp_path: Path) -> None:
    build(CONFIGS["char"]).save(tmp_path / "tokenizer")
    header = json.loads((tmp_path / "tokenizer" / "tokenizer.json").read_text())
    assert header == {
        "format_version": 1,
        "kind": "char",
        "shared": True,
        "source": {"lowercase": True, "nfkc": False},
        "target": {"lowercase": False, "nfkc": False},
    }


@pytest.mark.parametrize("name", ["tokenizer.json", "target.json"])
def test_loading_says_which_file_is_missing(name: str, tmp_path: Path) -> None:
    build(CONFIGS["chars"]).save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        load_tokenizers(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / name}: cannot be read (No such file or directory); "
        "restore the file, or train again"
    )


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"kind": "bytes"}, "KeyError('bytes')"),
        (
            {"source": {"lower": True}},
            "TypeError(\"Normalizer.__init__() got an unexpected keyword argument 'lower'\")",
        ),
    ],
)
def test_loading_refuses_a_damaged_header(
    change: dict[str, object], got: str, tmp_path: Path
) -> None:
    build(CONFIGS["char"]).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError) as caught:
        load_tokenizers(tmp_path)
    assert str(caught.value) == (f"{file}: is damaged ({got}); restore the file, or train again")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000], ids=range(6)
)
def test_loading_refuses_a_header_that_is_none(content: bytes, tmp_path: Path) -> None:
    build(CONFIGS["char"]).save(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is damaged \("):
        load_tokenizers(tmp_path)


def test_loading_refuses_a_newer_format(tmp_path: Path) -> None:
    build(CONFIGS["char"]).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 2}))
    with pytest.raises(CheckpointError) as caught:
        load_tokenizers(tmp_path)
    assert str(caught.value) == (
        f"{file}: was written by a newer tformer than this one, which reads format 1 (format 2); "
        "upgrade tformer"
    )


def test_a_search_begins_by_the_kind_of_network_and_ends_with_eos() -> None:
    tokenizers = build_tokenizers(CharConfig(), lambda: [("ab", "a b")] * 3, seed=1)
    suppressed = tokenizers.target.suppressed_ids
    assert tokenizers.special_ids("encoder_decoder") == (BOS_ID, EOS_ID, suppressed)
    assert tokenizers.special_ids("decoder_only") == (SEP_ID, EOS_ID, suppressed)
