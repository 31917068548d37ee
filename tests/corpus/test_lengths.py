import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.corpus import lengths as lengths_room
from tformer_cli.corpus.lengths import LengthReport, max_sentences, report_lengths
from tformer_cli.text.segments import sentence_ends


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
    assert max_sentences(lines) == expected


def test_of_many_lines_evenly_spaced_ones_are_counted(monkeypatch):
    monkeypatch.setattr(lengths_room, "COUNTED_LINES", 100)
    # The second half alone has lines of two sentences: the beginning would not show them.
    lines = [*["One line."] * 3000, *["One. Two."] * 3000]
    counted = []
    monkeypatch.setattr(
        lengths_room, "sentence_ends", lambda line: counted.append(line) or sentence_ends(line)
    )
    assert max_sentences(iter(lines)) == 2
    assert 100 <= len(counted) < 200
    assert abs(counted.count("One. Two.") - len(counted) / 2) <= 1


def test_a_text_of_blank_lines_has_no_sentence():
    assert max_sentences(["", " "]) == 0
