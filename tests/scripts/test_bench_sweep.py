"""Choosing a learning rate: by the validation text alone, at equal budgets."""

import json
from pathlib import Path

import pytest
import sweep
from sweep import best_first, table
from toy import write_toy
from training_runs import TrainingRun
from typer.testing import CliRunner

from tformer_cli.errors import ConfigError, TrainingError

SETTINGS = ("training.validation_decoding.max_length=5", "training.selection_metric=loss")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = write_toy(tmp_path / "data", pairs=60)
    # What no sweep may read.
    (file.parent / "test.tgt").write_bytes(b"\xff\n")
    return file


def swept(config_file: Path, *words: str) -> object:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    folder = config_file.parent.parent / "sweep"
    given = [str(config_file), "--folder", str(folder), "--threads", "1", *settings, *words]
    return CliRunner().invoke(sweep.app, given)


@pytest.mark.parametrize("name", ["ours", "hf"])
def test_the_best_on_the_validation_text_comes_first(config_file, monkeypatch, name):
    monkeypatch.setattr(sweep, "train_in_process", lambda run, **_: run.train())
    words = ("--baseline", name, "--steps", "3", "--rates", "5e-3,1e-9", "--warmups", "1,2")
    printed = swept(config_file, *words, "--json")
    assert printed.exception is None, printed.exception
    outcomes = json.loads(printed.stdout)
    assert {(row["learning_rate"], row["warmup_steps"]) for row in outcomes} == {
        (rate, warmup) for rate in (5e-3, 1e-9) for warmup in (1, 2)
    }
    assert [row["learning_rate"] for row in outcomes] == [5e-3, 5e-3, 1e-9, 1e-9]
    settings = {(row["baseline"], row["steps"], row["optimizer"]) for row in outcomes}
    assert settings == {(name, 3, "adamw")}
    scores = [row["valid_score"] for row in outcomes]
    assert scores == sorted(scores, reverse=True)
    folders = {path.name for path in (config_file.parents[1] / "sweep").glob(f"{name}-*/")}
    assert len(folders) == 4
    assert not any("." in folder for folder in folders)
    # Again, it trains nothing.
    monkeypatch.delattr(sweep, "train_in_process")
    assert swept(config_file, *words, "--json").stdout == printed.stdout


def test_a_rate_that_fails_is_an_outcome_too(config_file, monkeypatch):
    def train(run: TrainingRun, **_: float) -> None:
        if run.config.training.optimizer.learning_rate > 1:
            raise TrainingError("x", "diverged")
        run.train()

    monkeypatch.setattr(sweep, "train_in_process", train)
    printed = swept(config_file, "--steps", "2", "--rates", "2,1e-3", "--warmups", "1")
    lines = printed.stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["adamw", "0.001", "1"],
        ["adamw", "2", "1"],
    ]
    assert lines[2].split()[3:] == ["failed", "failed"]


def test_outcomes_are_ranked_and_read_as_lines():
    settings = {"optimizer": "muon", "learning_rate": 3e-3, "warmup_steps": 600}
    ranked = best_first(
        [
            settings | {"valid_score": score, "at_step": None if score is None else 1500}
            for score in (None, 30.126, 31.0)
        ]
    )
    assert [row["valid_score"] for row in ranked] == [31.0, 30.126, None]
    assert table(ranked).split("\n") == [
        "optimizer    rate   warm-up    valid   at step",
        "muon        0.003       600    31.00     1,500",
        "muon        0.003       600    30.13     1,500",
        "muon        0.003       600   failed    failed",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rates", "1e-3,x"), "--rates: must be numbers with commas between (1e-3,x)"),
        (("--baseline", "textbook"), "--baseline: no such baseline (textbook); "),
        (("--optimizers", "sgd"), "--optimizers: no such optimizer (sgd); "),
    ],
)
def test_mistake_of_the_command_line_is_named(config_file, words, message):
    assert str(swept(config_file, *words).exception).startswith(message)


def test_warm_up_beyond_the_budget_is_refused(config_file):
    printed = swept(config_file, "--steps", "2", "--warmups", "3")
    assert isinstance(printed.exception, ConfigError)
