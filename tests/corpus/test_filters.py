"""Which pairs are kept, and how the rest is counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema import FilterConfig
from tformer_cli.corpus.filters import FilterReport, PairFilter

LENGTHS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)))


def kept(keeps: PairFilter, num_source: int, num_target: int) -> bool:
    return keeps([20] * num_source, [30] * num_target, "a" * num_source, "b" * num_target)


def test_pair_with_an_empty_side_is_dropped() -> None:
    keeps = PairFilter(FilterConfig())
    assert [kept(keeps, *lengths) for lengths in ((0, 3), (3, 0), (0, 0), (1, 1))] == [
        *(False, False, False),
        True,
    ]
    assert keeps.report == FilterReport(kept=1, empty=3)


def test_pair_is_dropped_beyond_the_length_not_at_it() -> None:
    keeps = PairFilter(FilterConfig(max_length=5))
    assert [kept(keeps, *lengths) for lengths in ((5, 5), (6, 1), (1, 6))] == [True, False, False]
    assert keeps.report == FilterReport(kept=1, too_long=2)


def test_pair_is_dropped_beyond_the_ratio_not_at_it() -> None:
    keeps = PairFilter(FilterConfig(max_ratio=2.5))
    assert [kept(keeps, *lengths) for lengths in ((2, 5), (5, 2), (2, 6), (6, 2))] == [
        *(True, True),
        *(False, False),
    ]
    assert keeps.report == FilterReport(kept=2, ratio=2)


def test_pair_of_any_ratio_is_kept_unless_asked() -> None:
    keeps = PairFilter(FilterConfig())
    assert kept(keeps, 1, 256)
    assert keeps.report == FilterReport(kept=1)


def test_duplicate_is_equal_on_both_sides_as_text() -> None:
    keeps = PairFilter(FilterConfig(drop_duplicates=True))
    pairs = [("a", "b"), ("a", "c"), ("c", "b"), ("a", "b"), ("ab", ""), ("", "ab"), ("A", "b")]
    verdicts = [keeps([20], [30], source, target) for source, target in pairs]
    assert verdicts == [True, True, True, False, True, True, True]
    assert keeps.report == FilterReport(kept=6, duplicate=1)


def test_duplicate_is_kept_unless_asked() -> None:
    keeps = PairFilter(FilterConfig())
    assert [keeps([20], [30], "a", "b") for _ in range(3)] == [True] * 3


def test_pair_dropped_for_another_reason_makes_no_duplicate() -> None:
    keeps = PairFilter(FilterConfig(drop_duplicates=True, max_length=1))
    assert not keeps([20, 20], [30], "a", "b")
    assert keeps([20], [30], "a", "b")


@given(LENGTHS)
def test_report_counts_each_pair_once(lengths: list[tuple[int, int]]) -> None:
    keeps = PairFilter(FilterConfig(max_length=5, max_ratio=2, drop_duplicates=True))
    verdicts = [kept(keeps, *pair) for pair in lengths]
    report = keeps.report
    assert report.seen == len(lengths)
    assert report.kept == sum(verdicts)
    assert report.empty == sum(0 in pair for pair in lengths)
    good = {
        (source, target)
        for source, target in lengths
        if min(source, target) >= 1 and max(source, target) <= min(5, 2 * min(source, target))
    }
    assert report.kept == len(good)


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
