"""Figures against the histories that they show."""

import sys
from pathlib import Path

import matplotlib as mpl
import pytest

from tformer_cli.errors import UsageError
from tformer_cli.plotting.curves import COLORS, PANELS, draw, save
from tformer_cli.plotting.history import History

MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def history(run: str, *, length: int, num_validations: int = 0) -> History:
    """Curves that are all different."""
    scales = {"train_loss": 3.0, "learning_rate": 1e-3, "grad_norm": 0.7, "tokens_per_second": 5e3}
    curves = {
        name: [(10 * n, scale / n) for n in range(1, length + 1)] for name, scale in scales.items()
    }
    if num_validations:
        steps = range(25, 25 * num_validations + 1, 25)
        curves["valid_loss"] = [(step, 60 / step) for step in steps]
        curves["valid_bleu"] = [(step, step / 7) for step in steps]
    return History(Path(run), curves)


LONG = history("runs/long", length=40, num_validations=16)
SHORT = history("runs/short", length=3)
PLAIN = History(Path("runs/plain"), {"grad_norm": [(10, 0.5), (20, 0.25)]})


def test_lines_hold_the_curves_and_nothing_else():
    figure = draw([LONG, SHORT], "step")
    assert [axes.get_ylabel() for axes in figure.axes] == [panel.label for panel in PANELS]
    for axes, panel in zip(figure.axes, PANELS, strict=True):
        expected = [
            history.curves[name]
            for history in (LONG, SHORT)
            for name in panel.names
            if name in history.curves
        ]
        assert [list(map(tuple, line.get_xydata())) for line in axes.lines] == expected


def test_every_point_is_inside_its_panel():
    for axes in draw([SHORT, LONG], "step").axes:
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        points = [point for line in axes.lines for point in line.get_xydata()]
        assert all(left <= x <= right and bottom <= y <= top for x, y in points)
        assert (left, bottom) == (0, 0)


def test_panels_without_a_curve_are_left_out():
    labels = [axes.get_ylabel() for axes in draw([SHORT], "step").axes]
    assert labels == [panel.label for panel in PANELS if panel.label != "validation BLEU"]


@pytest.mark.parametrize(
    ("by", "label"),
    [
        ("step", "optimiser steps"),
        ("tokens", "target tokens"),
        ("hours", "hours of optimiser steps"),
    ],
)
def test_the_lowest_panel_alone_names_x(by, label):
    assert [axes.get_xlabel() for axes in draw([LONG], by).axes] == ["", "", "", "", label]


def test_a_panel_of_zeros_is_drawn():
    (axes,) = draw([History(Path("run"), {"valid_bleu": [(10, 0.0), (20, 0.0)]})], "step").axes
    assert axes.get_ylim()[0] == 0 < axes.get_ylim()[1]


def test_numbers_have_thousands_separators():
    curves = {"tokens_per_second": [(20_000_000, 9000.0), (50_000_000, 11_500.0)]}
    (axes,) = draw([History(Path("run"), curves)], "tokens").axes
    for axis, tick, text in (
        (axes.xaxis, 20_000_000, "20,000,000"),
        (axes.yaxis, 7500.0, "7,500"),
        (axes.yaxis, 0.1 + 0.2, "0.3"),
        (axes.yaxis, 0.00025, "0.00025"),
    ):
        assert axis.get_major_formatter()(tick) == text


def test_a_run_has_one_look_and_no_other_run_has_it():
    runs = [history(f"runs/{n}", length=2, num_validations=2) for n in range(9)]
    loss, bleu, *_ = draw(runs, "step").axes
    looks = [
        {(line.get_color(), line.get_linestyle()) for line in (*loss.lines[2 * n :][:2], bleu_line)}
        for n, bleu_line in enumerate(bleu.lines)
    ]
    assert [len(found) for found in looks] == [1] * 9
    assert len(set.union(*looks)) == 9
    assert {colour for colour, _ in set.union(*looks)} == set(COLORS)


def test_validation_and_single_points_have_markers():
    single = history("runs/single", length=1)
    axes = draw([LONG, single], "step").axes[0]
    assert [line.get_marker() for line in axes.lines] == ["", "o", "o"]


def legend(figure) -> list[str]:
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def test_legend_names_the_runs_and_the_kinds_of_loss():
    assert legend(draw([LONG, SHORT], "step")) == ["long", "short", "training", "validation"]


def test_legend_tells_folders_of_one_name_apart():
    runs = [history(run, length=2) for run in ("a/run", "b/run", "b/other")]
    assert legend(draw(runs, "step")) == ["a/run", "b/run", "other", "training"]


@pytest.mark.parametrize("name", ["_first", "$x$", r"50%_$\frac$"])
def test_legend_takes_names_literally(tmp_path, name):
    figure = draw([History(Path(name), PLAIN.curves)], "step")
    save(figure, tmp_path / "curves.png")
    assert legend(figure) == [name]


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_figure_is_written_in_the_format_of_its_name(tmp_path, suffix):
    file = tmp_path / f"curves{suffix}"
    save(draw([PLAIN], "step"), file)
    assert file.read_bytes().startswith(MAGIC[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_figure_is_a_function_of_the_reports(tmp_path, suffix):
    """Neither the time of day nor the settings of the user change a byte."""
    one, two = (tmp_path / f"{name}{suffix}" for name in ("one", "two"))
    save(draw([PLAIN], "step"), one)
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.grid": False}):
        save(draw([PLAIN], "step"), two)
        assert mpl.rcParams["font.size"] == 20
    assert one.read_bytes() == two.read_bytes()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError) as caught:
        draw([SHORT], "step")
    assert str(caught.value) == (
        "tformer plot: needs matplotlib, which is not installed; "
        "install it with: pip install 'tformer[plot]'"
    )
