"""Histories against the reports that they were written as."""

import json
import math
import os
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import training, validation, written

from tformer_cli.errors import CheckpointError
from tformer_cli.plotting.history import read_history
from tformer_cli.storage.run_directory import RunDirectory

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
