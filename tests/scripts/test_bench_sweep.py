"""Choosing settings: by the validation texts alone, at equal budgets."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import sweep
import training_runs
from sweep import settings_of, table
from toy import write_toy
from training_runs import TrainingRun, train_in_process
from typer.testing import CliRunner

from tformer_cli.errors import CheckpointError, ConfigError, TrainingError

SETTINGS = (
    "training.validation_decoding.max_length=5",
    "training.selection_metric=loss",
    "training.max_steps=3",
    "training.validate_every=3",
    "training.schedule.warmup_steps=1",
)
SLOW, SLOWEST = "training.optimizer.learning_rate=1e-5", "training.optimizer.learning_rate=1e-9"


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


@pytest.mark.parametrize("name", ["ours", "hf", "m2m100"])
def test_each_variant_is_trained_once_with_each_seed(config_file, monkeypatch, name):
    monkeypatch.setattr(sweep, "train_in_process", lambda run, **_: run.train())
    words = ("--baseline", name, "--seeds", "1,2", "--variant", SLOW, "--variant", SLOWEST)
    printed = swept(config_file, *words, "--json")
    assert printed.exception is None, printed.exception
    outcomes = json.loads(printed.stdout)
    assert [(row["variant"], row["seed"]) for row in outcomes] == [
        (variant, seed) for variant in ("", SLOW, SLOWEST) for seed in (1, 2)
    ]
    assert all(row["at_step"] == 3 for row in outcomes)
    scores = [row["valid_score"] for row in outcomes]
    assert len(set(scores)) == 6
    for seed in (0, 1):
        own, *slower = scores[seed::2]
        assert own == max(scores[seed::2])
        assert slower == sorted(slower, reverse=True)
    # Again, it trains nothing.
    monkeypatch.setattr(sweep, "train_in_process", train_in_process)
    monkeypatch.delattr(training_runs, "Worker")
    assert swept(config_file, *words, "--json").stdout == printed.stdout


def test_a_variant_that_fails_is_an_outcome_too(config_file, monkeypatch):
    def train(run: TrainingRun, **_: float) -> None:
        rate = run.config.training.optimizer.learning_rate
        if rate < 1:
            run.train()
        if rate == 3:
            # After its first validation, long before its last step.
            short = replace(run.config.training, max_steps=3)
            type(run)(replace(run.config, training=short), run.run).train()
        if rate > 1:
            raise TrainingError("x", "diverged")

    monkeypatch.setattr(sweep, "train_in_process", train)
    variants = [f"training.optimizer.learning_rate={rate}" for rate in (2, 3)]
    words = [word for variant in variants for word in ("--variant", variant)]
    lines = swept(config_file, *words, "--set", "training.max_steps=6").stdout.splitlines()
    assert [line.split() for line in lines[2:]] == [[each, "failed", "-"] for each in variants]
    assert "failed" not in lines[1]


@pytest.mark.slow
def test_a_config_with_dots_in_its_name_trains_each_variant_in_its_folder(config_file):
    dotted = config_file.rename(config_file.with_name("toy.v1.2.yaml"))
    printed = swept(dotted, "--variant", SLOW, "--json")
    assert printed.exception is None, printed.exception
    scores = [row["valid_score"] for row in json.loads(printed.stdout)]
    assert None not in scores
    assert len(set(scores)) == 2
    names = [path.name for path in (config_file.parent.parent / "sweep").iterdir()]
    runs = {name for name in names if not name.startswith(".") and name.count(".") == 2}
    assert len(runs) == 2
    files = {f"{name}.{ending}" for name in runs for ending in ("yaml", "cpu.json")}
    assert {name for name in names if not name.startswith(".")} == runs | files


def test_a_config_that_was_edited_since_is_not_taken_for_the_one_that_was_trained(
    config_file, monkeypatch
):
    monkeypatch.setattr(sweep, "train_in_process", lambda run, **_: run.train())
    assert swept(config_file).exception is None
    config_file.write_text(config_file.read_text().replace("dropout: 0.1", "dropout: 0.2"))
    again = swept(config_file)
    assert isinstance(again.exception, CheckpointError)
    assert "holds a training with other settings" in str(again.exception)


def test_variants_have_a_row():
    scores = {"": [10.0], "x=1": [11.0, 12.0], "x=2": [None, 4.5], "x=3": [None]}
    outcomes = [
        {
            "variant": variant,
            "seed": seed,
            "valid_score": score,
            "minutes": None if score is None else 2.0,
        }
        for variant, row in scores.items()
        for seed, score in enumerate(row)
    ]
    assert [line.split() for line in table("a.yaml", outcomes).split("\n")] == [
        ["variant", "a.yaml", "a.yaml,", "min"],
        ["(the", "config's", "own)", "10.00", "2.0"],
        ["x=1", "11.50", "±", "0.71", "2.0"],
        ["x=2", "4.50", "2.0"],
        ["x=3", "failed", "-"],
    ]


def test_settings_of_a_variant_stand_between_semicolons():
    assert settings_of("") == []
    assert settings_of("a={kind: x, y: 1}; b.c=2;") == ["a={kind: x, y: 1}", "b.c=2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "1,x"), "--seeds: must be whole numbers with commas between (1,x)"),
    ],
)
def test_mistake_of_the_command_line_is_named(config_file, words, message):
    assert str(swept(config_file, *words).exception).startswith(message)


def test_a_variant_of_no_key_is_refused_before_anything_is_trained(config_file, monkeypatch):
    monkeypatch.delattr(sweep, "train_in_process")
    printed = swept(config_file, "--variant", "training.speed=9")
    assert isinstance(printed.exception, ConfigError)
