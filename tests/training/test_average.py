"""The average of the checkpoints of a trained run, and when it is best."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import write_toy

from tformer_cli.config.load import load_config
from tformer_cli.errors import CheckpointError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import best_checkpoints, load_progress
from tformer_cli.storage.trained_model import load_trained_network
from tformer_cli.training.average import average_checkpoints
from tformer_cli.training.trainer import train
from tformer_cli.training.validation import validate, validation_fingerprint

CPU = torch.device("cpu")


def finished(folder: Path, *settings: str) -> RunDirectory:
    run = RunDirectory(folder / "run")
    settings = ("training.validate_every=6", *settings)
    train(load_config(write_toy(folder / "data"), settings), run, device=CPU)
    return run


def scores(run: RunDirectory) -> dict[int, float]:
    lines = map(json.loads, run.metrics_file.read_text().splitlines())
    return {line["step"]: line["bleu"] for line in lines if line["kind"] == "valid"}


def test_the_average_is_the_mean_of_the_last_checkpoints(tmp_path):
    run = finished(tmp_path)
    found = average_checkpoints(run, "last", 2, device=CPU)
    assert found.members == (run.checkpoint(24), run.checkpoint(18))
    one, two, mean = (
        load_file(folder / "model.safetensors")
        for folder in (run.checkpoint(24), run.checkpoint(18), found.checkpoint)
    )
    for name, weight in mean.items():
        torch.testing.assert_close(
            weight.double(), (one[name].double() + two[name].double()) / 2, rtol=1e-6, atol=1e-9
        )


def test_an_average_stands_where_its_newest_member_does_whatever_the_digits_of_steps(tmp_path):
    run = finished(tmp_path)
    for step, later in ((18, 999_999), (24, 1_000_000)):
        run.checkpoint(step).rename(run.checkpoint(later))
    for name in ("best", "last"):
        run.point(name, run.checkpoint(1_000_000))
    found = average_checkpoints(run, "last", 2, device=CPU)
    assert load_progress(found.checkpoint).step == 24


def test_the_best_checkpoints_are_those_with_the_best_scores(tmp_path):
    run = finished(tmp_path, "training.keep_best=3", "training.keep_checkpoints=1")
    ranked = sorted(scores(run).items(), key=lambda item: (item[1], item[0]), reverse=True)
    found = average_checkpoints(run, "best", 3, device=CPU)
    assert found.members == tuple(run.checkpoint(step) for step, _ in ranked[:3])


def test_best_is_the_average_where_that_does_better(tmp_path):
    run = finished(tmp_path)
    before = run.pointed("best")
    found = average_checkpoints(run, "last", 2, device=CPU)
    assert load_progress(found.checkpoint).score == found.score
    assert found.best_score == scores(run)[int(before.name.removeprefix("step-"))]
    assert found.is_best == (found.score > found.best_score)
    assert run.pointed("best") == (found.checkpoint if found.is_best else before)


def test_an_average_that_does_better_becomes_best_and_one_that_does_not_leaves_it(
    tmp_path, monkeypatch
):
    run = finished(tmp_path)
    before = run.pointed("best")
    for score, best in ((-1.0, before), (101.0, run.checkpoints / "average-last-2")):
        monkeypatch.setattr(
            "tformer_cli.training.average.selection_score", lambda *_, score=score: score
        )
        assert average_checkpoints(run, "last", 2, device=CPU).is_best == (score > 0)
        assert run.pointed("best") == best


def test_an_average_that_is_best_stays_beside_one_of_other_checkpoints(tmp_path, monkeypatch):
    run = finished(tmp_path)
    score = "tformer_cli.training.average.selection_score"
    monkeypatch.setattr(score, lambda *_: 101.0)
    best = average_checkpoints(run, "last", 2, device=CPU).checkpoint
    content = (best / "model.safetensors").read_bytes()
    monkeypatch.setattr(score, lambda *_: 50.0)
    run.point("last", run.checkpoint(18))
    shutil.rmtree(run.checkpoint(24))
    found = average_checkpoints(run, "last", 2, device=CPU)
    assert found.checkpoint.name == "average-last-2-step-000018"
    assert found.members == (run.checkpoint(18), run.checkpoint(12))
    assert load_progress(found.checkpoint).score == 50.0
    assert run.pointed("best") == best
    assert (best / "model.safetensors").read_bytes() == content
    assert load_progress(best).score == 101.0


def test_where_best_is_gone_an_average_is_compared_with_the_best_that_is_left(
    tmp_path, monkeypatch
):
    run = finished(tmp_path, "training.keep_checkpoints=9", "training.keep_best=9")
    first, second, *_ = best_checkpoints(run.step_checkpoints())
    shutil.rmtree(first)
    run.point("best", first)
    run.point("last", run.step_checkpoints()[-1])
    left = load_progress(second).score
    monkeypatch.setattr("tformer_cli.training.average.is_finished", lambda *_: True)
    monkeypatch.setattr("tformer_cli.training.average.selection_score", lambda *_: left + 1.0)
    found = average_checkpoints(run, "last", 2, device=CPU)
    assert (found.best_score, found.is_best) == (left, True)
    assert run.pointed("best") == found.checkpoint


def test_an_average_is_compared_with_best_on_the_same_validation_text(tmp_path):
    run = finished(tmp_path, "training.selection_metric=loss")
    config = load_config(run.config_file)
    before = load_progress(run.pointed("best"))
    for file in config.data.valid.files.values():
        file.write_text("".join(file.read_text().splitlines(keepends=True)[::3]))
    best = load_trained_network(run, "best")
    likelihood = validate(best.model, best.tokenizers, config, CPU, torch.float32).likelihood
    found = average_checkpoints(run, "last", 2, device=CPU)
    assert found.best_score == pytest.approx(-likelihood.loss) != before.score
    assert found.is_best == (found.score > found.best_score)
    saved = load_progress(found.checkpoint)
    assert saved.validation_fingerprint == validation_fingerprint(config)
    assert before.validation_fingerprint != saved.validation_fingerprint


def test_best_stays_while_the_run_is_not_finished(tmp_path, monkeypatch):
    run = finished(tmp_path)
    config = run.config_file.read_text().replace("max_steps: 24", "max_steps: 1000")
    run.config_file.write_text(config)
    before = run.pointed("best")
    monkeypatch.setattr("tformer_cli.training.average.selection_score", lambda *_: 101.0)
    found = average_checkpoints(run, "last", 2, device=CPU)
    assert (found.run_has_ended, found.is_best) == (False, False)
    assert run.pointed("best") == before


@pytest.mark.parametrize(
    ("which", "message"),
    [
        (
            "last",
            "has too few checkpoints (3 of 9); ask for fewer, or train with "
            "training.keep_checkpoints: 9",
        ),
        (
            "best",
            "has too few validated checkpoints (3 of 9); ask for fewer, or train with "
            "training.keep_best: 9",
        ),
    ],
)
def test_too_few_checkpoints_are_an_error(tmp_path, which, message):
    run = finished(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        average_checkpoints(run, which, 9, device=CPU)
    assert str(caught.value) == f"{run.path}: {message}"
    assert not list(run.checkpoints.glob("average*"))


def test_no_fewer_than_two_checkpoints_are_asked_for(tmp_path):
    run = finished(tmp_path)
    for checkpoint in run.step_checkpoints():
        if checkpoint != run.pointed("last"):
            shutil.rmtree(checkpoint)
    with pytest.raises(CheckpointError) as caught:
        average_checkpoints(run, "last", 2, device=CPU)
    assert str(caught.value) == (
        f"{run.path}: has too few checkpoints (1 of 2); train with training.keep_checkpoints: 2"
    )
