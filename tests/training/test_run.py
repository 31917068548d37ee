"""Whole runs on the toy corpus: beginning, ending, being interrupted and going on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import CONFIG, write_toy

from tformer_cli.checkpoint import load_state, load_trained_model
from tformer_cli.config.load import load_config
from tformer_cli.errors import CheckpointError, Interrupted
from tformer_cli.run_directory import RunDirectory
from tformer_cli.training.run import train
from tformer_cli.training.validation import validate

CPU = torch.device("cpu")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "data")


def trained(config_file: Path, folder: Path, *overrides: str, fresh: bool = False) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, overrides), run, device=CPU, fresh=fresh)
    return run


def assert_same_end(run: RunDirectory, other: RunDirectory) -> None:
    """The last checkpoints are equal to the bit, and so is what was reported."""
    names = [file.name for file in run.pointed("last").glob("*.safetensors")]
    for name in names:
        one, two = (load_file(folder.pointed("last") / name) for folder in (run, other))
        assert one.keys() == two.keys()
        for key in one:
            assert torch.equal(one[key], two[key]), key
    assert reported(run) == reported(other)
    assert (run.path / "best").read_text() == (other.path / "best").read_text()


def reported(run: RunDirectory) -> list[dict[str, object]]:
    timings = ("seconds", "tokens_per_second")
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in timings} for line in lines]


def test_run_folder_holds_what_it_should(toy, tmp_path):
    run = trained(toy, tmp_path / "run")
    assert sorted(path.name for path in run.path.iterdir()) == [
        "best",
        "checkpoints",
        "config.yaml",
        "last",
        "metrics.jsonl",
        "samples",
        "tokenizer",
        "train.log",
    ]
    assert run.pointed("last") == run.checkpoint(24)
    assert load_config(run.config_file) == load_config(toy)
    lines = reported(run)
    assert [line["step"] for line in lines if line["kind"] == "valid"] == [12, 24]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [
        5,
        6,
        10,
        12,
        15,
        18,
        20,
        24,
    ]
    assert {file.name for file in run.samples.iterdir()} == {"step-000012.txt", "step-000024.txt"}


def test_only_the_newest_checkpoints_and_the_best_are_kept(toy, tmp_path):
    run = trained(toy, tmp_path / "run", "training.keep_checkpoints=1", "training.save_every=3")
    kept = {folder.name for folder in run.checkpoints.iterdir()}
    assert kept == {"step-000024", run.pointed("best").name}


def test_two_runs_of_one_config_are_equal(toy, tmp_path):
    assert_same_end(trained(toy, tmp_path / "one"), trained(toy, tmp_path / "two"))


def test_accumulating_changes_the_weights_by_rounding_only(toy, tmp_path):
    settings = (
        "model.dropout=0",
        "training.max_steps=6",
        "training.validate_every=6",
        "training.optimizer={kind: adam, epsilon: 1e-4}",
    )
    whole = trained(toy, tmp_path / "whole", *settings)
    parts = trained(toy, tmp_path / "parts", *settings, "training.accumulate=3")
    one, two = (load_file(run.pointed("last") / "model.safetensors") for run in (whole, parts))
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-4, atol=1e-5)


def test_a_finished_run_says_so_and_takes_no_step(toy, tmp_path, capsys):
    run = trained(toy, tmp_path / "run")
    before = run.metrics_file.read_text()
    capsys.readouterr()
    trained(toy, tmp_path / "run")
    assert f"{run.path}: finished at step 24" in capsys.readouterr().err
    assert run.metrics_file.read_text() == before


def test_fresh_forgets_the_run_and_leaves_foreign_files(toy, tmp_path):
    run = trained(toy, tmp_path / "run")
    (run.path / "notes.txt").write_text("mine")
    trained(toy, tmp_path / "run", "seed=4", "training.max_steps=12", fresh=True)
    assert [line["step"] for line in reported(run) if line["kind"] == "valid"] == [12]
    assert (run.path / "notes.txt").read_text() == "mine"
    assert load_config(run.config_file).seed == 4


def test_a_change_of_the_trajectory_is_refused(toy, tmp_path):
    trained(toy, tmp_path / "run", "training.max_steps=12")
    with pytest.raises(CheckpointError) as caught:
        trained(toy, tmp_path / "run", "training.max_steps=12", "training.batch_tokens=301")
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: training.batch_tokens has changed since this run began "
        "(it was 300); got 301; change it back, or train elsewhere with --run, or anew with --fresh"
    )


def test_a_change_that_leaves_the_trajectory_alone_is_accepted_and_said(toy, tmp_path, capsys):
    trained(toy, tmp_path / "run")
    trained(toy, tmp_path / "run", "decoding.size=3", "training.save_every=4")
    output = capsys.readouterr().err
    assert "accepted a changed setting: decoding.size: 2 -> 3" in output
    assert "accepted a changed setting: training.save_every: 6 -> 4" in output
    assert load_config(tmp_path / "run" / "config.yaml").decoding.size == 3


def test_changed_training_text_is_refused(toy, tmp_path):
    trained(toy, tmp_path / "run")
    text = toy.parent / "train.src"
    text.write_text("a" + text.read_text()[1:])
    with pytest.raises(CheckpointError) as caught:
        trained(toy, tmp_path / "run")
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: the training text or its tokenizer has changed since this run began; "
        "restore it, or train elsewhere with --run, or anew with --fresh"
    )


def command(config_file: Path, run: Path) -> list[str]:
    return [sys.executable, "-m", "tformer_cli", "train", str(config_file), "--run", str(run)]


def start_and_wait_for(config_file: Path, run: Path, line: str) -> subprocess.Popen[str]:
    """Start a training in a process of its own, and return when it has printed a line."""
    process = subprocess.Popen(
        command(config_file, run),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    for printed in process.stderr:
        if line in printed:
            return process
    raise AssertionError(f"the training ended without printing {line!r}")


def test_training_stops_when_it_gets_no_better(toy, tmp_path, capsys):
    # So high a learning rate ruins the model: the first validation stays the best.
    settings = ("training.patience=2", "training.validate_every=3", "training.select=loss")
    ruined = "training.optimizer.learning_rate=1.0"
    run = trained(toy, tmp_path / "run", *settings, ruined)
    losses = [line["loss"] for line in reported(run) if line["kind"] == "valid"]
    assert losses.index(min(losses)) == len(losses) - 3
    output = capsys.readouterr().err
    assert "no better validation in the last 2: stopping early" in output
    stopped_at = run.pointed("last").name
    assert int(stopped_at.removeprefix("step-")) < 24
    trained(toy, tmp_path / "run", *settings, ruined)
    assert "finished at step" in capsys.readouterr().err
    assert run.pointed("last").name == stopped_at


def test_patience_counts_validations_since_the_best_one(toy, tmp_path):
    run = trained(toy, tmp_path / "run", "training.validate_every=2", "training.keep_checkpoints=9")
    best, stale = -1.0, 0
    scores = {x["step"]: x["bleu"] for x in reported(run) if x["kind"] == "valid"}
    for step, score in sorted(scores.items()):
        best, stale = (score, 0) if score >= best else (best, stale + 1)
        if run.checkpoint(step).exists():
            state = load_state(run.checkpoint(step))
            assert (state.score, state.best_score, state.num_stale) == (score, best, stale)


def test_the_best_checkpoints_are_kept_beside_the_newest(toy, tmp_path):
    run = trained(
        toy,
        tmp_path / "run",
        "training.validate_every=4",
        "training.keep_checkpoints=1",
        "training.keep_best=3",
    )
    scores = [(x["bleu"], x["step"]) for x in reported(run) if x["kind"] == "valid"]
    best = {run.checkpoint(step) for _, step in sorted(scores, reverse=True)[:3]}
    assert set(run.step_checkpoints()) == best | {run.checkpoint(24)}


def test_a_moving_average_is_validated_saved_and_translated_with(toy, tmp_path):
    plain = trained(toy, tmp_path / "plain")
    averaged = trained(toy, tmp_path / "averaged", "training.ema_decay=0.9")
    last = averaged.pointed("last")
    trained_weights = load_file(last / "trained.safetensors")
    plain_weights = load_file(plain.pointed("last") / "model.safetensors")
    for name, weight in plain_weights.items():
        # The average follows the training without touching it.
        assert torch.equal(trained_weights[name], weight)
    config = load_config(averaged.config_file)
    average = load_trained_model(averaged, "last")
    evaluation = validate(average.model, average.tokenizers, config, CPU, torch.float32)
    reports = [line for line in reported(averaged) if line["kind"] == "valid"]
    assert reports[-1]["loss"] == pytest.approx(evaluation.likelihood.loss, rel=1e-6)
    assert reports[-1]["loss"] != [x for x in reported(plain) if x["kind"] == "valid"][-1]["loss"]


@pytest.mark.parametrize("step", [10, 35])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, step):
    # Enough steps behind the last of these that the kill comes before the end.
    config = CONFIG.replace("dropout: 0.1", "dropout: 0.3").replace(
        "max_steps: 24", "max_steps: 72\n  ema_decay: 0.9"
    )
    config_file = write_toy(tmp_path / "data", config=config)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command(config_file, unbroken), check=True, capture_output=True, env=environment)
    process = start_and_wait_for(config_file, broken, f"step {step}/")
    process.kill()
    process.wait()
    process.stderr.close()
    done = subprocess.run(
        command(config_file, broken), check=True, capture_output=True, text=True, env=environment
    )
    assert "going on after step" in done.stderr
    assert_same_end(RunDirectory(unbroken), RunDirectory(broken))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves_with_a_clear_line(tmp_path, number):
    config_file = write_toy(
        tmp_path / "data", config=CONFIG.replace("max_steps: 24", "max_steps: 100000")
    )
    process = start_and_wait_for(config_file, tmp_path / "run", "step 5/")
    process.send_signal(number)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 128 + number
    last = RunDirectory(tmp_path / "run").pointed("last")
    step = int(last.name.removeprefix("step-"))
    assert rest.splitlines()[-1] == (
        f"{tmp_path / 'run'}: interrupted; saved at step {step}; "
        "the same command goes on from there"
    )


def test_interruption_is_an_error_with_the_exit_code_of_its_signal():
    error = Interrupted("runs/x", "interrupted", signal=15, remedy="go on")
    assert error.exit_code == 143
    assert str(error) == "runs/x: interrupted; go on"
