"""Axes against the numbers on them."""

import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from sentences import BIAS, TURNS, VECTORS, WINDOW

from tformer_cli.plotting.curves import COLORS, DASHES
from tformer_cli.plotting.panels import SIGNS, UNSEEN, WEIGHTS, draw_map, draw_scale, draw_table
from tformer_cli.plotting.sentence import Table


def empty():
    return Figure().add_subplot()


def test_all_maps_have_one_scale_and_what_is_unseen_stands_out():
    for weights in ([[0.2, 0.8]], [[0.5, 0.5], [1.0, 0.0]]):
        axes = empty()
        draw_map(axes, weights, "layer 1, head 1")
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), weights)
        assert (0 < image.norm.vmin < 1e-300, image.norm.vmax) == (True, 1)
        colours = image.to_rgba(np.array([[0.0, 1e-30, 0.5, 1.0]]), bytes=True)[0, :, :3]
        names = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours]
        middle = [int(WEIGHTS[1][at : at + 2], 16) for at in (1, 3, 5)]
        assert colours[2] == pytest.approx(middle, abs=1)
        assert [*names[:2], names[3]] == [UNSEEN, WEIGHTS[0], WEIGHTS[2]]


def test_the_scale_has_the_colours_of_maps():
    scale, map_ = empty(), empty()
    draw_scale(scale)
    draw_map(map_, [[1.0]], "")
    numbers = np.linspace(0.01, 1, 20)
    np.testing.assert_allclose(
        scale.images[0].to_rgba(numbers[None]), map_.images[0].to_rgba(numbers[None]), atol=0.01
    )


@pytest.mark.parametrize(("table", "most"), [(VECTORS, 2.0), (TURNS, 1.0)])
def test_tables_are_pictures_around_zero(table, most):
    axes = empty()
    draw_table(axes, table)
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array(), table.values)
    assert (image.norm.vmin, image.norm.vmax) == (-most, most)
    middle = image.to_rgba(np.array([[0.0]]), bytes=True)[0, 0, :3]
    assert SIGNS[1] == "#ffffff"
    assert min(middle) >= 253


def test_pairs_that_turn_are_named_by_their_wavelength():
    axes = empty()
    draw_table(axes, TURNS)
    found = [label.get_text() for label in axes.get_xticklabels()]
    assert found == ["6.3", "62.8", "628", "6,283"]


@pytest.mark.parametrize(
    ("table", "names"), [(BIAS, ["head 1", "head 2"]), (WINDOW, ["all heads"])]
)
def test_a_bias_is_a_line_for_each_head_that_ends_where_nothing_is_seen(table, names):
    axes = empty()
    draw_table(axes, table)
    for line, values in zip(axes.lines, table.values, strict=True):
        expected = [math.nan if value is None else value for value in values]
        np.testing.assert_array_equal(line.get_xdata(), table.columns)
        np.testing.assert_array_equal(line.get_ydata(), expected)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == names
    assert axes.get_xlim() == (table.columns[0] - 0.5, table.columns[-1] + 0.5)


def test_no_two_heads_have_one_line():
    count = len(COLORS) * len(DASHES)
    heads = list(range(1, count + 1))
    axes = empty()
    draw_table(axes, Table("bias", ["encoder"], heads, [0, 1], [[0.0, 1.0]] * count))
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == count
