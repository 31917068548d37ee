"""Which pairs are kept, and how the rest is counted."""

import importlib.util
import pickle
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.config.schema.text import ParallelText
from tformer_cli.corpus.filters import (
    CLEANING,
    KEPT,
    REASONS,
    RULES,
    FilterReport,
    PairFilter,
    length_reasons,
)
from tformer_cli.errors import UsageError

LENGTHS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)))


def judged(config: FilterConfig, *lengths: tuple[int, int]) -> tuple[list[bool], FilterReport]:
    source, target = np.array(lengths, dtype=np.int64).reshape(-1, 2).T
    reasons = length_reasons(config, source, target)
    return (reasons == KEPT).tolist(), FilterReport.of(reasons.tolist())


def test_pair_with_an_empty_side_is_dropped() -> None:
    kept, report = judged(FilterConfig(), (0, 3), (3, 0), (0, 0), (1, 1))
    assert kept == [False, False, False, True]
    assert report == FilterReport(kept=1, empty=3)


def test_pair_is_dropped_beyond_the_length_not_at_it() -> None:
    kept, report = judged(FilterConfig(max_length=5), (5, 5), (6, 1), (1, 6))
    assert kept == [True, False, False]
    assert report == FilterReport(kept=1, too_long=2)


def test_pair_is_dropped_beyond_the_ratio_not_at_it() -> None:
    kept, report = judged(FilterConfig(max_ratio=2.5), (2, 5), (5, 2), (2, 6), (6, 2))
    assert kept == [True, True, False, False]
    assert report == FilterReport(kept=2, ratio=2)


def test_pair_of_any_ratio_is_kept_unless_asked() -> None:
    assert judged(FilterConfig(), (1, 256)) == ([True], FilterReport(kept=1))


@given(LENGTHS)
def test_report_counts_each_pair_once_under_the_first_rule_it_breaks(
    lengths: list[tuple[int, int]],
) -> None:
    kept, report = judged(FilterConfig(max_length=5, max_ratio=2), *lengths)
    expected = FilterReport()
    for source, target in lengths:
        shorter, longer = sorted((source, target))
        if shorter == 0:
            expected.empty += 1
        elif longer > 5:
            expected.too_long += 1
        elif longer > 2 * shorter:
            expected.ratio += 1
        else:
            expected.kept += 1
    assert report == expected
    assert report.seen == len(lengths)
    assert sum(kept) == report.kept


def test_reports_add_up() -> None:
    reports = [FilterReport(1, 2, 3, 4, 5), FilterReport(10, 20, 30, 40, 50)]
    assert sum(reports, FilterReport()) == FilterReport(11, 22, 33, 44, 55)


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (FilterReport(), "0 pairs: 0 kept"),
        (FilterReport(kept=1), "1 pair: 1 kept"),
        (
            FilterReport(kept=28_990, empty=4, too_long=6),
            "29,000 pairs: 28,990 kept; dropped 4 empty, 6 too long",
        ),
        (
            FilterReport(ratio=1000, duplicate=1),
            "1,001 pairs: 0 kept; dropped 1,000 of unequal length, 1 duplicate",
        ),
    ],
)
def test_report_reads_as_a_sentence(report: FilterReport, text: str) -> None:
    assert str(report) == text


def test_report_on_a_text_alone_counts_lines() -> None:
    assert FilterReport(kept=1).describe("line") == "1 line: 1 kept"
    assert FilterReport(kept=1, empty=1).describe("line") == "2 lines: 1 kept; dropped 1 empty"


def reasons(pairs, languages=("en", "de"), **thresholds) -> list[str]:
    return PairFilter(FilterConfig(**thresholds), languages).reasons(pairs)


@pytest.mark.parametrize(
    ("thresholds", "kept", "dropped"),
    [
        ({"min_letters": 0.5}, ("ab 12", "ab"), ("ab 123", "ab")),
        ({"min_letters": 1.0}, ("नमस्ते", "a b"), ("a.", "b")),
        ({"max_markup": 0}, ("a < b & c", "1<2>"), ("a", "<b>a</b>")),
        ({"max_markup": 2}, ("<i>a</i>", "b"), ("<i>a</i> &amp; b", "b")),
        ({"max_markup": 0}, ("a <b>b</b>&lt;", "&lt;<b>a</b> b"), ("<b>a</b>", "<i>a</i>")),
        ({"max_markup": 0}, ('<a href="en">a', '<a href="de" id="1">b'), ("<b>a <b>b", "<b>a b")),
        ({"max_markup": 0}, ("Q&A; R&D", "x"), ("a&#160;b", "b")),
        ({"max_repeats": 3}, ("ab...", "1000000"), ("ab....", "b")),
        ({"max_repeats": 1}, ("aba", "a  b"), ("abba", "b")),
        ({"max_other_script": 0.5}, ("dog", "Hund α"), ("dog", "αβγ")),
        ({"max_other_script": 0.0}, ("NASA", "Hund"), ("dog собака", "Hund")),
        (
            {"max_copied": 0.5},
            ("a small dog", "ein small dog"),
            ("a red dog runs", "a red dog ist"),
        ),
        ({"max_copied": 0.5}, ("Anna Bell 5", "Anna Bell 5"), ("the old dog", "the old dog")),
        ({"max_other_numbers": 0}, ("3 dogs", "drei Hunde"), ("in 2008", "im Jahr 2009")),
        ({"max_other_numbers": 0}, ("1,000 of 20", "20 von 1.000"), ("a dog", "20 Hunde")),
        ({"max_other_numbers": 1}, ("a dog", "20 Hunde"), ("in 2008", "im Jahr 2009")),
    ],
)
def test_each_rule_drops_beyond_its_threshold_and_not_at_it(thresholds, kept, dropped) -> None:
    ((key, _),) = thresholds.items()
    (reason,) = (name for name, rule in RULES.items() if rule.key == key)
    assert reasons([kept, dropped], **thresholds) == [KEPT, reason]
    assert reasons([kept, dropped]) == [KEPT, KEPT]


@pytest.mark.parametrize("languages", [("en", "en"), ("de", "de-CH"), ("eng_Latn", "en")])
def test_within_a_language_nothing_counts_as_copied(languages) -> None:
    pairs = [("she have two cat", "she has two cats"), ("the old dog", "the old dog")]
    assert reasons(pairs, languages, max_copied=0.0) == [KEPT, KEPT]
    assert reasons(pairs, ("en", "de"), max_copied=0.0) == [KEPT, "copied"]


TEXT = st.text("ab 1<>&;.Aα世", max_size=12)


@given(st.lists(st.tuples(TEXT, TEXT), max_size=5), st.floats(0, 1))
def test_rules_are_those_of_a_plain_count(pairs, share) -> None:
    for pair, reason in zip(pairs, reasons(pairs, min_letters=share), strict=True):
        counts = [(sum(c.isalpha() for c in s), sum(not c.isspace() for c in s)) for s in pair]
        is_broken = all(n for _, n in counts) and any(k / n < share for k, n in counts)
        assert reason == ("letters" if is_broken else KEPT)
    for pair, reason in zip(pairs, reasons(pairs, max_repeats=2), strict=True):
        runs = any(c * 3 in side for side in pair for c in set(side) - set(" 1"))
        assert reason == ("repeats" if runs and all(map(str.strip, pair)) else KEPT)


def test_a_pair_is_dropped_by_the_first_rule_that_it_breaks() -> None:
    pair = "<b>....</b>", "αβγ....2012"
    names = list(RULES)
    thresholds = {
        "letters": {"min_letters": 0.9},
        "markup": {"max_markup": 0},
        "repeats": {"max_repeats": 2},
        "script": {"max_other_script": 0.1},
        "numbers": {"max_other_numbers": 0},
    }
    assert list(thresholds) == [name for name in names if name in thresholds]
    while thresholds:
        merged = {key: value for each in thresholds.values() for key, value in each.items()}
        assert reasons([pair], **merged) == [next(iter(thresholds))]
        del thresholds[next(iter(thresholds))]


def test_held_out_lines_are_dropped_on_either_side_in_any_case(tmp_path: Path) -> None:
    files = tmp_path / "test.en", tmp_path / "test.de"
    for file, text in zip(files, ("A dog.\n\n", "Ein Hund.\n\n"), strict=True):
        file.write_text(text)
    held_out = [ParallelText(source=files[0], target=files[1])]
    pairs = [("a  DOG.", "x"), ("x", "ein hund."), ("a dog", "ein Hund"), ("x", "")]
    config = FilterConfig(drop_held_out=True)
    [rules] = PairFilter.of_texts(config, [("en", "de")], held_out)
    assert rules.reasons(pairs) == ["held_out", "held_out", KEPT, KEPT]
    assert pickle.loads(pickle.dumps(rules)).reasons(pairs) == rules.reasons(pairs)
    [others] = PairFilter.of_texts(FilterConfig(), [("en", "de")], held_out)
    assert others.reasons(pairs) == [KEPT] * 4


def test_a_single_side_has_the_rules_that_compare_none() -> None:
    config = FilterConfig(min_letters=0.5, max_markup=0, max_repeats=4, max_other_script=0.1)
    lines = [("a dog",), ("12",), ("<b>a",), ("aaaaa",), ("собака",), ("",)]
    expected = [KEPT, "letters", "markup", "repeats", "script", KEPT]
    assert PairFilter(config, ("en", "en")).reasons(lines) == expected


@pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs py3langid")
def test_pairs_in_another_language_are_dropped() -> None:
    config = FilterConfig(min_language=0.1)
    english = "A young man is playing a guitar on the street."
    german = "Ein junger Mann spielt auf der Straße Gitarre."
    french = "Un jeune homme joue de la guitare dans la rue."
    [rules] = PairFilter.of_texts(config, [("en", "de-AT")], ())
    pairs = [(english, german), (german, english), (english, french), (french, german)]
    assert rules.reasons(pairs) == [KEPT, "language", "language", "language"]
    with pytest.raises(UsageError) as caught:
        PairFilter.of_texts(config, [("en", "source")], ())
    assert str(caught.value) == (
        "data.filters.min_language: needs languages that py3langid knows (source); "
        "set data.source_language and data.target_language, or set it to null"
    )


def test_every_rule_and_count_has_its_words_and_its_key() -> None:
    assert list(REASONS) == [name for name in asdict(FilterReport()) if name != KEPT]
    keys = {field.name for field in fields(FilterConfig)}
    assert {rule.key for rule in RULES.values()} < keys
    assert set(RULES) < set(REASONS)


def test_cleaning_has_every_rule_but_that_of_an_optional_package() -> None:
    off = [key for key, value in asdict(CLEANING).items() if value is None or value is False]
    assert off == ["min_language"]
