"""Curves of braille patterns, read back dot by dot."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.plotting.braille import draw_chart, draw_curve

VALUES = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


def dots(rows: list[str]) -> np.ndarray:
    """Which dots are set, by the names of the characters: dots 1 to 3 and 7 are the left column."""
    numbers = [[1, 4], [2, 5], [3, 6], [7, 8]]
    picture = np.zeros((4 * len(rows), 2 * len(rows[0])), dtype=bool)
    for y, row in enumerate(rows):
        for x, character in enumerate(row):
            name = unicodedata.name(character).removeprefix("BRAILLE PATTERN ")
            for below, pair in enumerate(numbers):
                for right, number in enumerate(pair):
                    picture[4 * y + below, 2 * x + right] = str(number) in name
    return picture


def test_a_straight_line_is_a_diagonal():
    assert (dots(draw_curve([(0, 8), (7, 1)], 4, 2)) == np.eye(8, dtype=bool)).all()


@given(st.lists(VALUES, min_size=1, max_size=40), st.integers(1, 20), st.integers(1, 6))
def test_a_curve_has_one_run_of_dots_a_column_and_touches_the_last_one(values, width, height):
    rows = draw_curve(list(enumerate(values)), width, height)
    assert [len(row) for row in rows] == [width] * height
    picture = dots(rows)
    for column, before in zip(picture.T[1:], picture.T, strict=False):
        (set_dots,) = np.nonzero(column)
        assert (np.diff(set_dots) == 1).all()
        assert np.abs(np.subtract.outer(set_dots, np.nonzero(before)[0])).min() <= 1


def test_the_ends_of_a_curve_are_at_the_height_of_their_values():
    picture = dots(draw_curve([(0, 0.0), (5, 10.0), (9, 5.0)], 30, 4))
    assert picture[-1, 0]
    assert picture[:, -1].nonzero()[0].mean() == pytest.approx(7.5, abs=1)
    assert picture[0].any()


@pytest.mark.parametrize("width", [12, 20, 39])
@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_a_chart_is_a_rectangle_with_its_ends(width, count):
    points = [(50 * n, 9.0 - n / 100) for n in range(1, count + 1)]
    title, *rows, axis = chart = draw_chart("loss", points, width, 5)
    assert len(rows) == 5
    if count:
        assert title.split() == ["loss", f"{points[-1][1]:.2f}"]
        assert rows[0].split()[0] == "8.99"
        assert rows[-1].split()[0] == f"{points[-1][1]:.2f}"
        assert axis.split()[-1].endswith(f"{50 * count:,}")
    if width > 20:
        assert {len(line) for line in chart} == {width}
