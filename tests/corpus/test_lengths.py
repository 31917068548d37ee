import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.corpus.lengths import LengthReport, report_lengths


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
