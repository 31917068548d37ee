"""Which pairs are kept, and how the rest is counted."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.corpus import filters
from tformer_cli.corpus.filters import FilterReport, filter_lengths, find_repeats, pair_digests

LENGTHS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)))


def judged(config: FilterConfig, *lengths: tuple[int, int]) -> tuple[list[bool], FilterReport]:
    source, target = np.array(lengths, dtype=np.int64).reshape(-1, 2).T
    kept, report = filter_lengths(config, source, target)
    return kept.tolist(), report


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


def test_duplicate_is_equal_on_both_sides_as_text(tmp_path: Path) -> None:
    pairs = [("a", "b"), ("a", "c"), ("c", "b"), ("a", "b"), ("ab", ""), ("", "ab"), ("A", "b")]
    repeated = find_repeats(pair_digests(pairs), tmp_path).tolist()
    assert repeated == [False, False, False, True, False, False, False]


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 12))
def test_repeats_are_what_came_before(numbers: list[int], group: int) -> None:
    digests = pair_digests((str(number), "") for number in numbers)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(filters, "GROUP_PAIRS", group)
        with tempfile.TemporaryDirectory() as folder:
            repeated = find_repeats(digests, Path(folder))
            assert list(Path(folder).iterdir()) == []
    assert repeated.tolist() == [number in numbers[:i] for i, number in enumerate(numbers)]


@pytest.mark.parametrize("half", [0, 1])
def test_pairs_whose_digests_differ_in_one_half_are_no_duplicates(
    half: int, tmp_path: Path
) -> None:
    digests = np.ones((2, 2), dtype=np.uint64)
    digests[1, half] = 2
    assert find_repeats(digests, tmp_path).tolist() == [False, False]


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
