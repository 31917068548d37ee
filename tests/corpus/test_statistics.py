"""Lengths and vocabulary rates, against counting by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.text import (
    ParallelText,
    PlainText,
    PlainTrainingText,
    TrainingText,
)
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig, WordConfig
from tformer_cli.corpus import statistics
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.statistics import (
    LengthReport,
    VocabularyReport,
    p99_sentences,
    report_lengths,
    report_side,
    report_sides,
    source_sentences,
)
from tformer_cli.text.segments import sentence_ends
from tformer_cli.text.tokenizer import build_tokenizers


@given(st.lists(st.integers(0, 300), min_size=1, max_size=200))
def test_quantiles_are_those_of_the_sorted_list(lengths):
    ordered = sorted(lengths)
    report = report_lengths(np.array(lengths))
    assert math.isclose(report.mean, sum(lengths) / len(lengths))
    assert report.median == ordered[math.ceil(len(ordered) * 0.5) - 1]
    assert report.p99 == ordered[math.ceil(len(ordered) * 0.99) - 1]
    assert report.longest == ordered[-1]


def test_an_empty_text_has_no_length():
    assert report_lengths([]) == LengthReport(mean=0.0, median=0, p99=0, longest=0)


def test_a_report_reads_as_a_phrase():
    assert str(report_lengths([1, 2, 3, 1200])) == (
        "301.5 tokens a sentence (median 2, 99% up to 1,200, longest 1,200)"
    )


@pytest.mark.parametrize(("num_longer", "expected"), [(0, 1), (1, 1), (2, 3)])
def test_one_line_of_a_hundred_may_have_more_sentences(num_longer, expected):
    lines = [*["One. Two. Three."] * num_longer, *["One line."] * (100 - num_longer), "", " "]
    assert p99_sentences(lines) == expected


def test_of_many_lines_evenly_spaced_ones_are_counted(monkeypatch):
    monkeypatch.setattr(statistics, "COUNTED_LINES", 100)
    # The second half alone has lines of two sentences: the beginning would not show them.
    lines = [*["One line."] * 3000, *["One. Two."] * 3000]
    counted = []
    monkeypatch.setattr(
        statistics, "sentence_ends", lambda line: counted.append(line) or sentence_ends(line)
    )
    assert p99_sentences(iter(lines)) == 2
    assert 100 <= len(counted) < 200
    assert abs(counted.count("One. Two.") - len(counted) / 2) <= 1


def test_phrases_take_no_sentences_from_the_text_beside_them(tmp_path):
    texts = []
    for name, lines in {"two": ["One. Two."] * 3, "phrases": ["One"] * 500}.items():
        text = TrainingText(source=tmp_path / name, target=tmp_path / f"{name}.target")
        for file in text.files.values():
            file.write_text("".join(f"{line}\n" for line in lines))
        texts.append(text)
    data = DataConfig(train=tuple(texts), valid=texts[0])
    assert source_sentences(data) == 2
    assert source_sentences(replace(data, train=(texts[1],))) == 1
    plain = PlainTrainingText(text=tmp_path / "two")
    assert source_sentences(replace(data, train=(plain,))) is None


def test_a_text_of_whitespace_has_no_sentence():
    assert p99_sentences(["", " "]) == 0


PAIRS = [("ab ba", "xyz"), ("aab", "zyx x")]


def test_report_on_characters_is_counted_by_hand() -> None:
    tokenizer = build_tokenizers(CharConfig(shared=False), lambda: PAIRS, 1).source
    report = report_side(tokenizer, ["ab ba", "", "a?", "cab a b"], num_sentences=9)
    assert report == VocabularyReport(
        vocabulary_size=16 + 3,
        num_sentences=9,
        num_sampled=4,
        num_tokens=5 + 0 + 2 + 7,
        coverage=9 / 11,
        unknown_rate=2 / 14,
        byte_rate=0.0,
        lengths=LengthReport(mean=14 / 4, median=2, p99=7, longest=7),
        characters_per_token=1.0,
    )


def test_report_on_words_counts_their_characters() -> None:
    tokenizer = build_tokenizers(WordConfig(min_frequency=1), lambda: PAIRS, 1).source
    report = report_side(tokenizer, ["ab ba", "AB xx", 'ab "aab"'], 3)
    assert report.unknown_rate == 1 / 6
    # Of 15 visible characters, xx is unknown and two quotation marks are dropped.
    assert report.coverage == 11 / 15
    assert report.characters_per_token == 18 / 6


def test_report_on_subwords_tells_bytes_from_pieces() -> None:
    config = SubwordConfig(vocab_size=279)
    tokenizer = build_tokenizers(config, lambda: PAIRS, 1).source
    report = report_side(tokenizer, ["ab é漢"], 1)
    assert report.coverage == 2 / 4
    assert report.unknown_rate == 0
    assert report.byte_rate * report.num_tokens == pytest.approx(2 + 3)
    assert report.vocabulary_size == 279


def test_report_on_subwords_without_bytes_counts_the_unknown() -> None:
    config = SubwordConfig(vocab_size=32, byte_fallback=False)
    pairs = [("the cat sat on the mat", "a dog ran") for _ in range(3)]
    tokenizer = build_tokenizers(config, lambda: pairs, 1).source
    report = report_side(tokenizer, ["the é cat"], 1)
    assert report.coverage == 6 / 7
    assert report.unknown_rate * report.num_tokens == pytest.approx(1)
    assert report.byte_rate == 0


def test_report_on_no_text_divides_by_nothing() -> None:
    tokenizer = build_tokenizers(CharConfig(), lambda: PAIRS, 1).source
    for lines in ([], ["", " "]):
        assert report_side(tokenizer, lines, len(lines)) == VocabularyReport(
            vocabulary_size=16 + 6,
            num_sentences=len(lines),
            num_sampled=len(lines),
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
    assert report_sides(tokenizers, read_texts(plain), 1, seed=1) == {
        "source": report_side(tokenizers.source, ["ab ba", "aab"] * 2, 4)
    }
    pairs = [ParallelText(source=tmp_path / "a", target=tmp_path / "b")]
    assert report_sides(tokenizers, read_texts(pairs), 2, seed=1) == {
        "source": report_side(tokenizers.source, ["ab ba", "aab"], 2),
        "target": report_side(tokenizers.target, ["xyz", "zyx x"], 2),
    }


def test_of_a_long_text_the_same_lines_of_both_sides_are_drawn_by_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "SAMPLE_LINES", 100)
    for name, letter in (("a", "b"), ("x", "y")):
        (tmp_path / name).write_text("".join(f"{letter * length}\n" for length in range(1000)))
    texts = [ParallelText(source=tmp_path / "a", target=tmp_path / "x")]
    tokenizers = build_tokenizers(CharConfig(), lambda: [("b", "y")], 1)
    report = report_sides(tokenizers, read_texts(texts), 2, seed=1)
    source, target = report["source"], report["target"]
    assert (source.num_sentences, source.num_sampled) == (1000, 100)
    assert source == target
    # 100 of the numbers below 1000: mean 499.5, standard deviation 27; six of them are 164.
    assert abs(source.lengths.mean - 499.5) < 164
    assert report_sides(tokenizers, read_texts(texts), 2, seed=1) == report
    assert report_sides(tokenizers, read_texts(texts), 2, seed=2) != report


def test_a_report_counts_other_lines_than_those_learned_from(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "SAMPLE_LINES", 100)
    letters = [chr(0x4E00 + number) for number in range(400)]
    file = tmp_path / "text"
    file.write_text("".join(f"{letter}\n" for letter in letters))
    # 272 special pieces and bytes, the whitespace mark, and a letter of each line.
    config = SubwordConfig(vocab_size=272 + 1 + 100, sample_lines=100)
    tokenizers = build_tokenizers(config, lambda: ((letter, "") for letter in letters), 1)
    report = report_sides(tokenizers, read_texts([PlainText(text=file)]), 1, seed=1)["source"]
    # 25 of the 100 lines are expected, with standard deviation 3.8; six of them are 23.
    assert abs(report.coverage * 100 - 25) < 23
