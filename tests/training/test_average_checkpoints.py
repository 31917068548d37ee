"""Means over checkpoints that a training validates and keeps, beside what it trains."""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stepping import on_step
from torch import Tensor
from toy import write_toy

from tformer_cli.config.load import load_config
from tformer_cli.errors import CheckpointError, ConfigError, Interrupted
from tformer_cli.storage.atomic import remove_directory
from tformer_cli.storage.run_directory import MODEL_FILE, RAW_MODEL_FILE, RunDirectory
from tformer_cli.storage.state import load_progress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.training.average import average_checkpoints
from tformer_cli.training.trainer import train

CPU = torch.device("cpu")
# BLEU is zero after so few steps.
PLAIN = ("training.keep_checkpoints=4", "training.selection_metric=loss")
AVERAGING = (*PLAIN, "training.average_checkpoints=3")
STEPS = (6, 12, 18, 24)


def trained(config_file: Path, folder: Path, *settings: str) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, settings), run, device=CPU)
    return run


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def plain(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run without an average, that nobody may change."""
    return trained(toy, tmp_path_factory.mktemp("plain") / "run", *PLAIN)


@pytest.fixture(scope="module")
def averaging(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The same run with one."""
    return trained(toy, tmp_path_factory.mktemp("averaging") / "run", *AVERAGING)


def copied(run: RunDirectory, folder: Path) -> RunDirectory:
    shutil.copytree(run.path, folder)
    return RunDirectory(folder)


def mean_of(files: Sequence[Path]) -> dict[str, Tensor]:
    members = [load_file(file) for file in files]
    stacks = {key: torch.stack([x[key].double() for x in members]) for key in members[0]}
    return {key: stack.mean(dim=0) for key, stack in stacks.items()}


def assert_equal(one: Path, other: Path) -> None:
    tensors, others = load_file(one), load_file(other)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[key], others[key]) for key in tensors)


def assert_same_end(run: RunDirectory, other: RunDirectory) -> None:
    for file in other.checkpoint(24).glob("*.safetensors"):
        assert_equal(run.checkpoint(24) / file.name, file)
    one, two = (load_progress(x.checkpoint(24)) for x in (run, other))
    assert (one.score, one.best_score, one.best_step) == (two.score, two.best_score, two.best_step)


def test_each_checkpoint_has_the_mean_of_the_last_ones_beside_what_is_trained(plain, averaging):
    for number, step in enumerate(STEPS, start=1):
        assert_equal(
            averaging.checkpoint(step) / RAW_MODEL_FILE, plain.checkpoint(step) / MODEL_FILE
        )
        members = [plain.checkpoint(x) / MODEL_FILE for x in STEPS[max(0, number - 3) : number]]
        found, expected = load_file(averaging.checkpoint(step) / MODEL_FILE), mean_of(members)
        assert found.keys() == expected.keys()
        for key, weight in found.items():
            torch.testing.assert_close(weight.double(), expected[key], rtol=1e-6, atol=1e-9)


def test_the_mean_and_its_score_are_those_of_the_command_average(plain, averaging, tmp_path):
    average = average_checkpoints(copied(plain, tmp_path / "run"), "last", 3, device=CPU)
    last = averaging.checkpoint(24)
    assert_equal(last / MODEL_FILE, average.checkpoint / MODEL_FILE)
    assert load_progress(last).score == average.score
    assert average.score != load_progress(plain.checkpoint(24)).score


@pytest.mark.parametrize(
    "settings", [AVERAGING, (*PLAIN, "training.ema_decay=0.9")], ids=["mean", "moving average"]
)
def test_the_command_average_takes_what_was_trained_and_no_average(plain, toy, tmp_path, settings):
    run = trained(toy, tmp_path / "run", *settings)
    average = average_checkpoints(run, "last", 4, device=CPU)
    expected = mean_of([plain.checkpoint(step) / MODEL_FILE for step in STEPS])
    for key, weight in load_file(average.checkpoint / MODEL_FILE).items():
        torch.testing.assert_close(weight.double(), expected[key], rtol=1e-6, atol=1e-9)
    assert not (average.checkpoint / RAW_MODEL_FILE).exists()


def test_the_command_average_refuses_trained_weights_that_are_damaged(averaging, tmp_path):
    run = copied(averaging, tmp_path / "run")
    file = run.checkpoint(18) / RAW_MODEL_FILE
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        average_checkpoints(run, "last", 2, device=CPU)
    assert str(raised.value) == (
        f"{run.checkpoint(18)}: is damaged: {RAW_MODEL_FILE} does not match its checksum; "
        "train on for another one, or average fewer"
    )


def test_translations_are_by_the_mean(averaging):
    model = load_trained_model(averaging, "last").model
    stored = load_file(averaging.checkpoint(24) / MODEL_FILE)
    assert all(torch.equal(weight, stored[name]) for name, weight in model.named_parameters())


# 12 has a validation, 18 a checkpoint, 20 neither.
@pytest.mark.parametrize("step", [12, 18, 20])
def test_an_interruption_changes_no_bit(averaging, toy, tmp_path, monkeypatch, step):
    with monkeypatch.context() as patch:
        on_step(patch, step, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run", *AVERAGING)
    assert_same_end(trained(toy, tmp_path / "run", *AVERAGING), averaging)


def test_a_training_may_begin_to_average_and_end_it(plain, averaging, toy, tmp_path):
    for name, run, settings, expected in (
        ("begun", plain, AVERAGING, averaging),
        ("ended", averaging, PLAIN, plain),
    ):
        resumed = copied(run, tmp_path / name)
        resumed.point("last", resumed.checkpoint(18))
        trained(toy, resumed.path, *settings)
        for file in expected.checkpoint(24).glob("*.safetensors"):
            assert_equal(resumed.checkpoint(24) / file.name, file)


def test_an_older_checkpoint_that_is_kept_as_the_best_does_not_count(plain, toy, tmp_path):
    """A run that kept fewer begins to average: that of step 12 is there no more."""
    run = copied(plain, tmp_path / "run")
    run.point("last", run.checkpoint(18))
    remove_directory(run.checkpoint(12))
    trained(toy, run.path, *AVERAGING)
    assert run.checkpoint(6).is_dir()
    expected = mean_of([plain.checkpoint(step) / MODEL_FILE for step in (24, 18)])
    for key, weight in load_file(run.checkpoint(24) / MODEL_FILE).items():
        torch.testing.assert_close(weight.double(), expected[key], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("damage", ["a bit", "no file", "no checksums"])
def test_a_damaged_checkpoint_is_left_out_and_named(averaging, plain, toy, tmp_path, damage):
    run = copied(averaging, tmp_path / "run")
    run.point("last", run.checkpoint(18))
    file = run.checkpoint(12) / RAW_MODEL_FILE
    if damage == "a bit":
        content = bytearray(file.read_bytes())
        content[-1] ^= 4
        file.write_bytes(content)
        what = f"is damaged: {RAW_MODEL_FILE} does not match its checksum"
    elif damage == "no file":
        file.unlink()
        what = f"is incomplete: {RAW_MODEL_FILE} is missing"
    else:
        (run.checkpoint(12) / "SHA256SUMS").unlink()
        what = "is incomplete: SHA256SUMS is missing or damaged"
    trained(toy, run.path, *AVERAGING)
    line = f"{run.checkpoint(12)}: {what}; the average is without it"
    assert line in run.log_file.read_text()
    expected = mean_of([plain.checkpoint(step) / MODEL_FILE for step in (24, 18)])
    for key, weight in load_file(run.checkpoint(24) / MODEL_FILE).items():
        torch.testing.assert_close(weight.double(), expected[key], rtol=1e-6, atol=1e-9)


def test_averages_that_exclude_each_other_are_refused_at_once(toy):
    settings = "training.average_checkpoints=5", "training.ema_decay=0.9"
    with pytest.raises(ConfigError) as caught:
        load_config(toy, settings)
    first, second = map(str, caught.value.problems)
    assert first.endswith(
        "training.keep_checkpoints: must be at least training.average_checkpoints 5 (3)"
    )
    assert second.endswith(
        "training.ema_decay: must be null with training.average_checkpoints, which is another "
        "average (0.9)"
    )
    load_config(toy, ("training.average_checkpoints=5", "training.keep_checkpoints=5"))
