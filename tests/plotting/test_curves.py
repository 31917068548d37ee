"""Figures against histories, and histories against the metrics they are read from."""

import json
import math
import os
import sys
from itertools import accumulate
from pathlib import Path

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import training, validation, written

from tformer_cli.errors import CheckpointError, UsageError
from tformer_cli.plotting.curves import (
    COLORS,
    PANELS,
    History,
    draw_curves,
    read_history,
    save_figure,
)
from tformer_cli.storage.run_directory import RunDirectory

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
    figure = draw_curves([LONG, SHORT], "step")
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
    for axes in draw_curves([SHORT, LONG], "step").axes:
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        points = [point for line in axes.lines for point in line.get_xydata()]
        assert all(left <= x <= right and bottom <= y <= top for x, y in points)
        assert (left, bottom) == (0, 0)


def test_panels_without_a_curve_are_left_out():
    labels = [axes.get_ylabel() for axes in draw_curves([SHORT], "step").axes]
    assert labels == [panel.label for panel in PANELS if panel.label != "validation BLEU"]


@pytest.mark.parametrize(
    ("by", "label"),
    [
        ("step", "optimizer steps"),
        ("tokens", "target tokens"),
        ("hours", "hours of optimizer steps"),
    ],
)
def test_the_lowest_panel_alone_names_x(by, label):
    assert [axes.get_xlabel() for axes in draw_curves([LONG], by).axes] == ["", "", "", "", label]


def test_a_panel_of_zeros_is_drawn():
    (axes,) = draw_curves(
        [History(Path("run"), {"valid_bleu": [(10, 0.0), (20, 0.0)]})], "step"
    ).axes
    assert axes.get_ylim()[0] == 0 < axes.get_ylim()[1]


def test_numbers_have_thousands_separators():
    curves = {"tokens_per_second": [(20_000_000, 9000.0), (50_000_000, 11_500.0)]}
    (axes,) = draw_curves([History(Path("run"), curves)], "tokens").axes
    for axis, tick, text in (
        (axes.xaxis, 20_000_000, "20,000,000"),
        (axes.yaxis, 7500.0, "7,500"),
        (axes.yaxis, 0.1 + 0.2, "0.3"),
        (axes.yaxis, 0.00025, "0.00025"),
    ):
        assert axis.get_major_formatter()(tick) == text


def test_a_run_has_one_look_and_no_other_run_has_it():
    runs = [history(f"runs/{n}", length=2, num_validations=2) for n in range(9)]
    loss, bleu, *_ = draw_curves(runs, "step").axes
    looks = [
        {(line.get_color(), line.get_linestyle()) for line in (*loss.lines[2 * n :][:2], bleu_line)}
        for n, bleu_line in enumerate(bleu.lines)
    ]
    assert [len(found) for found in looks] == [1] * 9
    assert len(set.union(*looks)) == 9
    assert {color for color, _ in set.union(*looks)} == set(COLORS)


def test_validation_and_single_points_have_markers():
    single = history("runs/single", length=1)
    axes = draw_curves([LONG, single], "step").axes[0]
    assert [line.get_marker() for line in axes.lines] == ["", "o", "o"]


def legend(figure) -> list[str]:
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def test_legend_names_the_runs_and_the_kinds_of_loss():
    assert legend(draw_curves([LONG, SHORT], "step")) == ["long", "short", "training", "validation"]


def test_legend_tells_folders_of_one_name_apart():
    runs = [history(run, length=2) for run in ("a/run", "b/run", "b/other")]
    assert legend(draw_curves(runs, "step")) == ["a/run", "b/run", "other", "training"]


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_run_whose_name_is_not_utf8_is_drawn(tmp_path, suffix):
    figure = draw_curves([history("runs/a\udcff\n", length=3)], "step")
    save_figure(figure, tmp_path / f"curves{suffix}")
    assert legend(figure) == [r"a\udcff\n", "training"]


@pytest.mark.parametrize("name", ["_first", "$x$", r"50%_$\frac$"])
def test_legend_takes_names_literally(tmp_path, name):
    figure = draw_curves([History(Path(name), PLAIN.curves)], "step")
    save_figure(figure, tmp_path / "curves.png")
    assert legend(figure) == [name]


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_figure_is_written_in_the_format_of_its_name(tmp_path, suffix):
    file = tmp_path / f"curves{suffix}"
    save_figure(draw_curves([PLAIN], "step"), file)
    assert file.read_bytes().startswith(MAGIC[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_figure_is_a_function_of_the_reports(tmp_path, suffix):
    """Neither the time of day nor the settings of the user change a byte."""
    one, two = (tmp_path / f"{name}{suffix}" for name in ("one", "two"))
    save_figure(draw_curves([PLAIN], "step"), one)
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.grid": False}):
        save_figure(draw_curves([PLAIN], "step"), two)
        assert mpl.rcParams["font.size"] == 20
    assert one.read_bytes() == two.read_bytes()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError) as caught:
        draw_curves([SHORT], "step")
    assert str(caught.value) == (
        "tformer plot: needs matplotlib, which is not installed; "
        "install it with: pip install 'tformer[plot]'"
    )


TIMINGS = st.lists(st.tuples(st.integers(1, 10**9), st.floats(1e-4, 1e4)), min_size=1, max_size=8)


def test_history_of_a_real_run_is_what_it_reported(toy_run):
    reports = [json.loads(line) for line in (toy_run / "metrics.jsonl").read_text().splitlines()]
    trained = [report for report in reports if "seconds" in report]
    validated = [report for report in reports if "signature" in report]
    assert len(trained) + len(validated) == len(reports) > len(validated) > 1
    history = read_history(RunDirectory(toy_run), "step")
    assert history.run == toy_run
    assert history.curves == {
        "train_loss": [(line["step"], math.log(line["perplexity"])) for line in trained],
        "learning_rate": [(line["step"], line["learning_rate"]) for line in trained],
        "grad_norm": [(line["step"], line["grad_norm"]) for line in trained],
        "tokens_per_second": [(line["step"], line["tokens_per_second"]) for line in trained],
        "valid_loss": [(line["step"], line["loss"]) for line in validated],
        "valid_bleu": [(line["step"], line["bleu"]) for line in validated],
    }


@given(timings=TIMINGS)
def test_tokens_are_counted_without_rounding(tmp_path_factory, timings):
    reports = [
        training(step, num_tokens=num_tokens, seconds=seconds)
        for step, (num_tokens, seconds) in enumerate(timings, 1)
    ]
    run = written(tmp_path_factory.mktemp("run"), reports)
    counted = [x for x, _ in read_history(run, "tokens").curves["train_loss"]]
    assert counted == list(accumulate(num_tokens for num_tokens, _ in timings))


@given(timings=TIMINGS)
def test_hours_are_those_of_the_steps_so_far(tmp_path_factory, timings):
    reports = [training(step, seconds=seconds) for step, (_, seconds) in enumerate(timings, 1)]
    run = written(tmp_path_factory.mktemp("run"), reports)
    hours = [x for x, _ in read_history(run, "hours").curves["train_loss"]]
    sums = [math.fsum(seconds for _, seconds in timings[: n + 1]) for n in range(len(timings))]
    assert hours == pytest.approx([total / 3600 for total in sums])


@pytest.mark.parametrize(("by", "x"), [("step", 20), ("tokens", 700), ("hours", 1.5)])
def test_a_validation_stands_where_training_had_come_to(tmp_path, by, x):
    reports = [
        training(10, num_tokens=300, seconds=1800.0),
        training(20, num_tokens=400, seconds=3600.0),
        validation(20, loss=1.25, bleu=31.5),
        training(30),
    ]
    curves = read_history(written(tmp_path, reports), by).curves
    assert curves["valid_loss"] == [(x, 1.25)]
    assert curves["valid_bleu"] == [(x, 31.5)]


def test_training_and_validation_losses_are_both_unsmoothed(tmp_path):
    reports = [training(10, nll=1.75), validation(10, loss=1.75)]
    curves = read_history(written(tmp_path, reports), "step").curves
    assert curves["train_loss"] == [(10, pytest.approx(1.75))]
    assert curves["valid_loss"] == [(10, 1.75)]


@pytest.mark.parametrize("loss", ["null", "NaN", "Infinity"])
def test_a_validation_without_a_loss_has_no_point_of_it(tmp_path, loss):
    lines = [
        '{"kind": "valid", "step": 1, "loss": 2.5, "bleu": 3.0}',
        f'{{"kind": "valid", "step": 2, "loss": {loss}, "bleu": 0.0}}',
    ]
    run = RunDirectory(tmp_path)
    run.metrics_file.write_text("\n".join(lines), encoding="utf-8")
    curves = read_history(run, "step").curves
    assert curves == {"valid_loss": [(1, 2.5)], "valid_bleu": [(1, 3.0), (2, 0.0)]}


@pytest.mark.parametrize("kind", ["skip", "rollback", "memory"])
def test_reports_of_other_kinds_are_passed_over(tmp_path, kind):
    plain = written(tmp_path / "plain", [training(10), training(20)])
    other = written(
        tmp_path / "other",
        [training(10), {"kind": kind, "step": 11, "grad_norm": "nan"}, training(20)],
    )
    assert read_history(other, "tokens").curves == read_history(plain, "tokens").curves


@pytest.mark.parametrize("length", [1, 9, 60, -1])
def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path, length):
    whole = written(tmp_path / "whole", [training(10), validation(10)])
    cut = written(
        tmp_path / "cut", [training(10), validation(10)], cut=json.dumps(training(20))[:length]
    )
    assert read_history(cut, "step").curves == read_history(whole, "step").curves


def test_a_last_line_without_its_end_counts_when_it_is_whole(tmp_path):
    run = written(tmp_path, [training(10)], cut=json.dumps(training(20)))
    assert [x for x, _ in read_history(run, "step").curves["grad_norm"]] == [10, 20]


@pytest.mark.parametrize("line", ['{"kind": "tra', "7", "{}", '{"kind": "valid", "step": 3}'])
def test_a_damaged_line_is_named(tmp_path, line):
    run = written(tmp_path, [training(10)])
    with run.metrics_file.open("a") as metrics:
        metrics.write(f"{line}\n{json.dumps(training(20))}\n")
    with pytest.raises(CheckpointError) as caught:
        read_history(run, "step")
    assert str(caught.value) == (
        f"{run.metrics_file}:2: is no report of a training; remove the line to do without it"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda file: None,
        Path.touch,
        lambda file: file.write_text('{"kind": "train"'),
        os.mkfifo,
    ],
    ids=["missing", "empty", "cut short", "pipe"],
)
def test_a_run_without_reports_is_refused(tmp_path, make):
    run = RunDirectory(tmp_path)
    make(run.metrics_file)
    with pytest.raises(CheckpointError) as caught:
        read_history(run, "step")
    assert str(caught.value) == (
        f"{run.metrics_file}: holds no report of a training; "
        "wait for the first one, or name another run"
    )


def test_a_run_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        read_history(RunDirectory(tmp_path / "no"), "step")
    assert str(caught.value) == (
        f"{tmp_path / 'no'}: no such run folder; name the folder of a run, such as runs/demo"
    )
