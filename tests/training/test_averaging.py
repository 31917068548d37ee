import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import write_toy

from tformer_cli.config.load import load_config
from tformer_cli.errors import CheckpointError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import load_state
from tformer_cli.training.averaging import average
from tformer_cli.training.trainer import train

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
    found = average(run, "last", 2, device=CPU)
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
    found = average(run, "last", 2, device=CPU)
    assert load_state(found.checkpoint).step == 24


def test_the_best_checkpoints_are_those_with_the_best_scores(tmp_path):
    run = finished(tmp_path, "training.keep_best=3", "training.keep_checkpoints=1")
    ranked = sorted(scores(run).items(), key=lambda item: (item[1], item[0]), reverse=True)
    found = average(run, "best", 3, device=CPU)
    assert found.members == tuple(run.checkpoint(step) for step, _ in ranked[:3])


def test_best_is_the_average_where_that_does_better(tmp_path):
    run = finished(tmp_path)
    before = run.pointed("best")
    found = average(run, "last", 2, device=CPU)
    assert load_state(found.checkpoint).score == found.score
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
            "tformer_cli.training.averaging.selection_score", lambda *_, score=score: score
        )
        assert average(run, "last", 2, device=CPU).is_best == (score > 0)
        assert run.pointed("best") == best


def test_best_stays_while_the_run_is_not_finished(tmp_path, monkeypatch):
    run = finished(tmp_path)
    config = run.config_file.read_text().replace("max_steps: 24", "max_steps: 1000")
    run.config_file.write_text(config)
    before = run.pointed("best")
    monkeypatch.setattr("tformer_cli.training.averaging.selection_score", lambda *_: 101.0)
    found = average(run, "last", 2, device=CPU)
    assert (found.run_has_ended, found.is_best) == (False, False)
    assert run.pointed("best") == before


@pytest.mark.parametrize(
    ("which", "message"),
    [
        (
            "last",
            "has only 3 checkpoints; got --last 9; ask for fewer, or train with "
            "training.keep_checkpoints: 9",
        ),
        (
            "best",
            "has only 3 validated checkpoints; got --best 9; ask for fewer, or train with "
            "training.keep_best: 9",
        ),
    ],
)
def test_too_few_checkpoints_are_an_error(tmp_path, which, message):
    run = finished(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        average(run, which, 9, device=CPU)
    assert str(caught.value) == f"{run.path}: {message}"
    assert not list(run.checkpoints.glob("average*"))
