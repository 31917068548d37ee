"""Trainings that first train the embeddings of some tags alone."""

import signal
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stepping import on_step, poison
from together import together
from toy import write_languages

from tformer_cli.config.load import load_config
from tformer_cli.errors import ConfigError, Interrupted
from tformer_cli.model.network import network_part
from tformer_cli.storage.run_directory import MODEL_FILE, OPTIMIZER_FILE, RunDirectory
from tformer_cli.training.dry_run import dry_run
from tformer_cli.training.trainer import train

CPU = torch.device("cpu")
STEPS, FIRST = 6, 3
EMBEDDINGS = "encoder.embeddings.tokens.weight"
TAGS = {"<2cc>": 8, "made": 9}
SHORT = (
    f"training.max_steps={STEPS}",
    "training.validate_every=6",
    "training.save_every=1",
    "training.keep_checkpoints=9",
    "training.schedule.warmup_steps=1",
)
TAGS_FIRST = f"training.tags_first={{tags: [<2cc>, made], steps: {FIRST}}}"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_languages(tmp_path_factory.mktemp("many"))


def trained(config: Path, folder: Path, *settings: str) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config, (*SHORT, TAGS_FIRST, *settings)), run, device=CPU)
    return run


def weights(run: RunDirectory, step: int) -> dict[str, torch.Tensor]:
    return load_file(run.checkpoint(step) / MODEL_FILE)


def changed(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    """The rows that differ by name of a weight, one of a vector."""
    rows = {name: (old[name] != new[name]).flatten(1) for name in old if old[name].dim() > 1}
    rows |= {name: (old[name] != new[name])[None] for name in old if old[name].dim() == 1}
    return {name: x.any(dim=1).nonzero().flatten().tolist() for name, x in rows.items() if x.any()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("tie", ["all", "none"])
def test_other_weights_stay_to_the_bit_before_the_step_and_move_after_it(
    many, tmp_path, optimizer, tie
):
    settings = (f"training.optimizer.kind={optimizer}", f"model.tie_embeddings={tie}")
    run = trained(many, tmp_path / "run", *settings, "training.freeze=[decoder]")
    check_phases(run, frozen="decoder")


def check_phases(run: RunDirectory, frozen: str | None = None) -> None:
    """Check which weights have moved from each step to the next."""
    trained = {name for name in weights(run, 1) if network_part(name) != frozen}
    for before, after in pairwise(range(1, STEPS + 1)):
        rows = changed(weights(run, before), weights(run, after))
        if after <= FIRST:
            assert rows == {EMBEDDINGS: list(TAGS.values())}
        else:
            assert rows.keys() == trained
            assert len(rows[EMBEDDINGS]) > len(TAGS)


def test_later_steps_are_those_of_a_training_that_begins_with_the_weights(many, tmp_path):
    # At a constant rate, and in one batch without dropout, they differ by rounding alone; a large
    # epsilon, or Adam makes whole steps of it.
    same = (
        "training.schedule={kind: constant, warmup_steps: 0}",
        "training.optimizer={kind: adam, epsilon: 1e-4}",
        "training.batch_tokens=3000",
        "model.dropout=0",
    )
    run = trained(many, tmp_path / "run", *same)
    half = (f"training.max_steps={FIRST}", f"training.validate_every={FIRST}")
    first = trained(many, tmp_path / "first", *same, *half)
    assert changed(weights(first, FIRST), weights(run, FIRST)) == {}
    again = RunDirectory(tmp_path / "again")
    settings = (*SHORT, *same, *half, f"training.init_from={first.path}")
    train(load_config(many, settings), again, device=CPU)
    expected, found = weights(again, FIRST), weights(run, STEPS)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("step", range(1, STEPS))
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_training_that_is_broken_off_resumes_exactly(
    many, whole, tmp_path, monkeypatch, step, optimizer
):
    settings = (f"training.optimizer.kind={optimizer}", "training.ema_decay=0.9")
    with monkeypatch.context() as patch:
        on_step(patch, step, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted):
            trained(many, tmp_path / "run", *settings)
    run = trained(many, tmp_path / "run", *settings)
    for file in (MODEL_FILE, OPTIMIZER_FILE):
        one, two = (each.pointed("last") / file for each in (run, whole[optimizer]))
        assert one.read_bytes() == two.read_bytes()


@pytest.fixture(scope="module")
def whole(many, tmp_path_factory) -> dict[str, RunDirectory]:
    return {
        optimizer: trained(
            many,
            tmp_path_factory.mktemp(optimizer) / "run",
            f"training.optimizer.kind={optimizer}",
            "training.ema_decay=0.9",
        )
        for optimizer in ("adamw", "muon")
    }


def test_a_rollback_returns_to_the_tags_alone(many, tmp_path, monkeypatch):
    bad = [(1, 0), (1, 1), (1, 2)]
    poison(monkeypatch, lambda position: (position.epoch, position.batch) in bad)
    run = trained(many, tmp_path / "run")
    # The fifth step failed, and the checkpoint of the fourth may hold diverged weights.
    assert "rolling back to step 3" in run.log_file.read_text()
    check_phases(run)


def test_two_processes_train_what_one_trains(many, tmp_path):
    # A large epsilon, or Adam makes whole steps of rounding.
    same = ("model.dropout=0", "training.optimizer={kind: adam, epsilon: 1e-4}")
    alone = trained(many, tmp_path / "alone", *same)
    ended = together(2, lambda rank: trained(many, tmp_path / "run", *same), tmp_path / "said")
    assert [process.code for process in ended] == [0, 0], ended
    run = RunDirectory(tmp_path / "run")
    rows = changed(weights(run, 1), weights(run, FIRST))
    assert rows == {EMBEDDINGS: list(TAGS.values())}
    one, two = weights(alone, STEPS), weights(run, STEPS)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)


def test_the_log_says_it_and_a_dry_run_measures_the_later_steps(many, tmp_path):
    run = trained(many, tmp_path / "run", "training.freeze=[decoder]")
    assert "6 steps in all (the first 3 train <2cc>, made alone)" in run.log_file.read_text()
    settings = (*SHORT, TAGS_FIRST)
    part = dry_run(load_config(many, settings), RunDirectory(tmp_path / "dry"), device=CPU)
    assert part.num_frozen_parameters == 0
    assert f"{part.num_parameters:,} parameters" in str(part)


@pytest.mark.parametrize(
    ("tags", "complaint"),
    [
        (
            "[<2xx>]",
            "training.tags_first.tags.0: no training text has this tag (<2xx>); "
            "choose from: <2bb>, <2aa>, <2cc>, made",
        ),
        ("[]", "training.tags_first.tags: needs at least one tag (an empty list)"),
    ],
)
def test_tags_are_those_of_the_text(many, tags, complaint):
    with pytest.raises(ConfigError) as caught:
        load_config(many, [f"training.tags_first={{tags: {tags}, steps: 1}}"])
    assert complaint in str(caught.value)
