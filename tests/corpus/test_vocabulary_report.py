"""Numbers about a vocabulary, against counting by hand."""

from pathlib import Path

import pytest

from tformer_cli.config.schema.data import ParallelText, PlainText
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig, WordConfig
from tformer_cli.corpus.lengths import LengthReport
from tformer_cli.corpus.vocabulary_report import (
    VocabularyReport,
    report_sides,
    report_vocabulary,
)
from tformer_cli.text.tokenizer import build_tokenizers

PAIRS = [("ab ba", "xyz"), ("aab", "zyx x")]


def test_report_on_characters_is_counted_by_hand() -> None:
    tokenizer = build_tokenizers(CharConfig(shared=False), lambda: PAIRS, 1).source
    assert report_vocabulary(tokenizer, ["ab ba", "", "a?", "cab a b"]) == VocabularyReport(
        vocabulary_size=16 + 3,
        num_sentences=4,
        num_tokens=5 + 0 + 2 + 7,
        coverage=9 / 11,
        unknown_rate=2 / 14,
        byte_rate=0.0,
        lengths=LengthReport(mean=14 / 4, median=2, p99=7, longest=7),
        characters_per_token=1.0,
    )


def test_report_on_words_counts_their_characters() -> None:
    tokenizer = build_tokenizers(WordConfig(min_frequency=1), lambda: PAIRS, 1).source
    report = report_vocabulary(tokenizer, ["ab ba", "AB xx", 'ab "aab"'])
    assert report.unknown_rate == 1 / 6
    # Of 15 visible characters, xx is unknown and two quotation marks are dropped.
    assert report.coverage == 11 / 15
    assert report.characters_per_token == 18 / 6


def test_report_on_subwords_tells_bytes_from_pieces() -> None:
    config = SubwordConfig(vocab_size=279)
    tokenizer = build_tokenizers(config, lambda: PAIRS, 1).source
    report = report_vocabulary(tokenizer, ["ab é漢"])
    assert report.coverage == 2 / 4
    assert report.unknown_rate == 0
    assert report.byte_rate * report.num_tokens == pytest.approx(2 + 3)
    assert report.vocabulary_size == 279


def test_report_on_subwords_without_bytes_counts_the_unknown() -> None:
    config = SubwordConfig(vocab_size=32, byte_fallback=False)
    pairs = [("the cat sat on the mat", "a dog ran") for _ in range(3)]
    tokenizer = build_tokenizers(config, lambda: pairs, 1).source
    report = report_vocabulary(tokenizer, ["the é cat"])
    assert report.coverage == 6 / 7
    assert report.unknown_rate * report.num_tokens == pytest.approx(1)
    assert report.byte_rate == 0


def test_report_on_no_text_divides_by_nothing() -> None:
    tokenizer = build_tokenizers(CharConfig(), lambda: PAIRS, 1).source
    for lines, num_sentences in (([], 0), (["", " "], 2)):
        assert report_vocabulary(tokenizer, lines) == VocabularyReport(
            vocabulary_size=16 + 6,
            num_sentences=num_sentences,
            num_tokens=0,
            coverage=1.0,
            unknown_rate=0.0,
            byte_rate=0.0,
            lengths=LengthReport(mean=0.0, median=0, p99=0, longest=0),
            characters_per_token=0.0,
        )


def test_report_has_the_sides_that_texts_have(tmp_path: Path) -> None:
    for side, name in enumerate("ab"):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    tokenizers = build_tokenizers(CharConfig(shared=False), lambda: PAIRS, 1)
    plain = [PlainText(text=tmp_path / "a")] * 2
    assert report_sides(tokenizers, plain) == {
        "source": report_vocabulary(tokenizers.source, ["ab ba", "aab"] * 2)
    }
    pairs = [ParallelText(source=tmp_path / "a", target=tmp_path / "b")]
    assert report_sides(tokenizers, pairs) == {
        "source": report_vocabulary(tokenizers.source, ["ab ba", "aab"]),
        "target": report_vocabulary(tokenizers.target, ["xyz", "zyx x"]),
    }
