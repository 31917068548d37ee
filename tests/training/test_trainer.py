"""Whole runs on the toy corpus: beginning, ending, being interrupted and going on."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import pytest
import torch
from forked import forked_tformer
from killing import killed
from safetensors.torch import load_file
from stepping import on_step, poison
from toy import CONFIG, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.bucketing import DataPosition, training_micro_batches
from tformer_cli.errors import CheckpointError, Interrupted, TrainingError, UsageError
from tformer_cli.model.build import build_network
from tformer_cli.model.network import Seq2Seq
from tformer_cli.storage.atomic import empty_directory
from tformer_cli.storage.integrity import write_checksums
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import (
    TrainingProgress,
    best_checkpoints,
    load_progress,
    save_progress,
)
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.training import recovery, setup
from tformer_cli.training import trainer as run_module
from tformer_cli.training.resume import locked
from tformer_cli.training.schedules import build_schedule
from tformer_cli.training.step import TrainState, train_steps
from tformer_cli.training.trainer import train
from tformer_cli.training.validation import Validation, is_finished, scored, validate
from tformer_cli.translate.translator import Translator

CPU = torch.device("cpu")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "data")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that nobody may change."""
    folder = tmp_path_factory.mktemp("finished")
    return trained(write_toy(folder / "data"), folder / "run")


@pytest.fixture
def again(finished: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy of it, to verify_checksums and to go on with."""
    shutil.copytree(finished.path, tmp_path / "again")
    return RunDirectory(tmp_path / "again")


def trained(config_file: Path, folder: Path, *overrides: str, fresh: bool = False) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, overrides), run, device=CPU, fresh=fresh)
    return run


def assert_same_end(run: RunDirectory, other: RunDirectory) -> None:
    """The last checkpoints are equal to the bit, and so is what was reported."""
    names = [file.name for file in run.pointed("last").glob("*.safetensors")]
    assert {"model.safetensors", "optimizer.safetensors"} <= set(names)
    for name in names:
        one, two = (load_file(folder.pointed("last") / name) for folder in (run, other))
        assert one.keys() == two.keys()
        for key in one:
            assert torch.equal(one[key], two[key]), key
    assert reported(run) == reported(other) != []
    assert (run.path / "best").read_text() == (other.path / "best").read_text()


def reported(run: RunDirectory) -> list[dict[str, object]]:
    timings = ("seconds", "tokens_per_second")
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in timings} for line in lines]


def test_run_folder_holds_what_it_should(toy, tmp_path):
    run = trained(toy, tmp_path / "run")
    assert sorted(path.name for path in run.path.iterdir()) == [
        ".lock",
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
    parts = trained(toy, tmp_path / "parts", *settings, "training.gradient_accumulation_steps=3")
    one, two = (load_file(run.pointed("last") / "model.safetensors") for run in (whole, parts))
    assert one.keys() == two.keys() != set()
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-4, atol=1e-5)


def test_a_finished_run_says_so_and_takes_no_step(toy, tmp_path, capsys):
    run = trained(toy, tmp_path / "run")
    before = run.metrics_file.read_text()
    capsys.readouterr()
    trained(toy, tmp_path / "run")
    assert f"{run.path}: finished at step 24" in capsys.readouterr().err
    assert run.metrics_file.read_text() == before


def test_the_size_of_an_epoch_is_named_with_its_number(toy, tmp_path, capsys):
    """Epochs differ, so a run that is opened again may be in a longer one than at its start."""
    settings = (
        "data.train.0.weight=0.5",
        "data.filters.max_length=20",
        "training.batch_tokens=100",
        "training.report_every=1",
    )
    run = trained(toy, tmp_path / "run", *settings)
    run.point("last", run.checkpoint(12))
    trained(toy, run.path, *settings)
    named = re.findall(r"([0-9]+) steps in epoch ([0-9]+),", capsys.readouterr().err)
    # A step is reported with the epoch of the step after it.
    epochs = [0, *(line["epoch"] for line in reported(run) if line["kind"] == "train")]
    assert named == [(f"{epochs.count(epoch)}", f"{epoch}") for epoch in (0, epochs[12])]
    assert len({count for count, _ in named}) == 2


def test_fresh_forgets_the_run_and_leaves_foreign_files(toy, tmp_path):
    run = trained(toy, tmp_path / "run")
    (run.path / "notes.txt").write_text("mine")
    trained(toy, tmp_path / "run", "seed=4", "training.max_steps=12", fresh=True)
    assert [line["step"] for line in reported(run) if line["kind"] == "valid"] == [12]
    assert (run.path / "notes.txt").read_text() == "mine"
    assert load_config(run.config_file).seed == 4


@pytest.mark.parametrize("lost", [(), (24,), (6, 12, 18, 24)])
def test_a_kill_while_fresh_clears_the_run_leaves_the_former_training_or_none(
    finished, again, monkeypatch, lost
):
    def killed_early(folder: Path) -> None:
        for step in lost:
            shutil.rmtree(again.checkpoint(step), ignore_errors=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "empty_directory", killed_early)
        with pytest.raises(KeyboardInterrupt):
            trained(again.config_file, again.path, fresh=True)
    trained(again.config_file, again.path)
    assert_same_end(finished, again)


def test_a_kill_while_a_tokenizer_is_removed_leaves_no_part_of_one(finished, again, monkeypatch):
    def killed_midway(folder: Path) -> None:
        if folder == again.tokenizer:
            (folder / "tokenizer.json").unlink()
            raise KeyboardInterrupt
        empty_directory(folder)

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "empty_directory", killed_midway)
        with pytest.raises(KeyboardInterrupt):
            trained(again.config_file, again.path, fresh=True)
    trained(again.config_file, again.path)
    assert_same_end(finished, again)


def test_fresh_forgets_checkpoints_behind_a_link(toy, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    run = RunDirectory(tmp_path / "run")
    run.lock_file.touch()
    run.checkpoints.symlink_to(tmp_path / "elsewhere")
    trained(toy, run.path, "training.max_steps=18")
    trained(toy, run.path, "seed=4", "training.max_steps=12", fresh=True)
    assert run.checkpoints.is_symlink()
    assert [folder.name for folder in run.step_checkpoints()] == ["step-000006", "step-000012"]


@pytest.mark.parametrize("name", ["eval", "tokenizer", "config.yaml", "letter.txt"])
def test_a_folder_of_somebody_else_is_left_alone(toy, tmp_path, name):
    theirs = tmp_path / "theirs" / name
    (theirs if theirs.suffix == "" else theirs.parent).mkdir(parents=True)
    if theirs.suffix:
        theirs.write_text("mine")
    with pytest.raises(UsageError) as caught:
        trained(toy, tmp_path / "theirs", fresh=True)
    assert str(caught.value) == (
        f"{tmp_path / 'theirs'}: is not empty and not a run folder "
        f"({name} in it); name another folder with `run`"
    )
    assert list((tmp_path / "theirs").iterdir()) == [theirs]


def test_a_change_of_the_trajectory_is_refused(toy, tmp_path):
    trained(toy, tmp_path / "run", "training.max_steps=12")
    with pytest.raises(CheckpointError) as caught:
        trained(toy, tmp_path / "run", "training.max_steps=12", "training.batch_tokens=301")
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: training.batch_tokens was 300 when this run began "
        "(301); change it back, start over with `fresh=True`, or train its "
        "weights further: `training.init_from=RUN` `run=NEW`"
    )


def test_a_change_that_leaves_the_trajectory_alone_is_accepted_and_said(toy, tmp_path, capsys):
    trained(toy, tmp_path / "run")
    trained(toy, tmp_path / "run", "decoding.beam_size=3", "training.save_every=4")
    output = capsys.readouterr().err
    assert "accepted a changed setting: decoding.beam_size: 2 -> 3" in output
    assert "accepted a changed setting: training.save_every: 6 -> 4" in output
    assert load_config(tmp_path / "run" / "config.yaml").decoding.beam_size == 3


def test_changed_training_text_is_refused(toy, tmp_path):
    trained(toy, tmp_path / "run")
    text = toy.parent / "train.src"
    text.write_text("a" + text.read_text()[1:])
    with pytest.raises(CheckpointError) as caught:
        trained(toy, tmp_path / "run")
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: the training text or its tokenizer has changed since this run began; "
        "restore it, start over with `fresh=True`, or train its weights further: "
        "`training.init_from=RUN` `run=NEW`"
    )


def test_sentences_of_training_lines_are_counted_when_a_run_begins(toy, tmp_path):
    source = toy.parent / "train.src"
    source.write_text("".join(f"{line}. {line}\n" for line in source.read_text().splitlines()))
    run = trained(toy, tmp_path / "run", "training.max_steps=12")
    assert load_progress(run.pointed("last")).max_source_sentences == 2


def test_a_run_that_counted_none_counts_none_when_it_goes_on(again):
    state = load_progress(again.checkpoint(18))
    assert state.max_source_sentences == 1
    shutil.rmtree(again.checkpoint(24))
    (again.checkpoint(18) / "SHA256SUMS").unlink()
    save_progress(replace(state, max_source_sentences=None), again.checkpoint(18))
    write_checksums(again.checkpoint(18))
    again.point("last", again.checkpoint(18))
    trained(again.config_file, again.path)
    assert load_progress(again.checkpoint(24)).max_source_sentences is None


def test_a_position_beyond_the_end_of_an_epoch_is_refused(again):
    """There, the rest of the epoch would be left out without a word."""
    last = again.pointed("last")
    state = load_progress(last)
    (last / "SHA256SUMS").unlink()
    save_progress(replace(state, data_position=(state.data_position[0], 10**9)), last)
    write_checksums(last)
    with pytest.raises(CheckpointError) as caught:
        trained(again.config_file, again.path)
    found = r"is damaged \(batch 1000000000 of an epoch of \d+\); use an earlier checkpoint"
    assert re.fullmatch(f"{re.escape(str(last / 'state.json'))}: {found}", str(caught.value))


def test_validation_translates_lines_of_several_sentences_as_the_translator_does(toy, tmp_path):
    source = toy.parent / "valid.src"
    lines = [f"{line}. {line}." for line in source.read_text().splitlines()]
    source.write_text("".join(f"{line}\n" for line in lines))
    run = trained(toy, tmp_path / "run", "training.max_steps=12", "training.sample_translations=12")
    translator = Translator.load(run.path, checkpoint="last", device="cpu")
    decoding = load_config(run.config_file).training.validation_decoding
    expected = translator.translate(lines, decoding=decoding)
    samples = (run.samples / "step-000012.txt").read_text()
    assert [line for line in expected if line not in samples] == []
    translator.preprocessor.max_source_sentences = None
    assert translator.translate(lines, decoding=decoding) != expected


def test_a_second_process_is_refused(toy, tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    with locked(run), pytest.raises(TrainingError) as caught:
        trained(toy, run.path)
    assert str(caught.value) == (
        f"{run.path}: another process is training here (process {os.getpid()}); "
        "wait for it, or train elsewhere with `run`"
    )
    assert not run.config_file.exists()


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def damage_last(run: RunDirectory, how: str) -> str:
    """Damage what a run goes on from; return how that is called."""
    last = run.pointed("last")
    if how == "flipped":
        flip_a_bit(last / "optimizer.safetensors")
        return f"{last}: is damaged: optimizer.safetensors does not match its checksum"
    if how == "torn":
        (last / "state.json").unlink()
        return f"{last}: is incomplete: state.json is missing"
    if how == "unsummed":
        (last / "SHA256SUMS").unlink()
        return f"{last}: is incomplete: SHA256SUMS is missing or damaged"
    if how == "gone":
        shutil.rmtree(last)
        return f"{last}: does not exist"
    (run.path / "last").write_text("step-000777\n")
    shutil.rmtree(last)
    return f"{run.checkpoints / 'step-000777'}: does not exist"


@pytest.mark.parametrize("how", ["flipped", "torn", "unsummed", "gone", "pointer"])
def test_where_the_last_checkpoint_is_damaged_the_one_before_is_gone_on_from(
    finished, again, capsys, how
):
    what = damage_last(again, how)
    trained(again.config_file, again.path)
    output = capsys.readouterr().err
    assert f"{what}; resuming from step-000018\n" in output
    assert f"{again.path}: resuming after step 18\n" in output
    assert_same_end(finished, again)


@pytest.mark.parametrize("setting", ["seed=4", "model.dim=24", "training.ema_decay=0.9"])
def test_a_whole_checkpoint_of_another_training_gives_way_to_the_one_before(
    finished, again, toy, tmp_path, capsys, setting
):
    other = trained(toy, tmp_path / "other", setting)
    last = again.checkpoint(24)
    shutil.rmtree(last)
    shutil.copytree(other.checkpoint(24), last)
    trained(again.config_file, again.path)
    assert (
        f"{last}: belongs to another training ({setting.replace('=', ' ')}); "
        "resuming from step-000018\n"
    ) in capsys.readouterr().err
    assert_same_end(finished, again)


def test_a_checkpoint_under_the_name_of_a_later_one_gives_way_to_the_one_before(
    finished, again, capsys
):
    last = again.checkpoint(24)
    shutil.rmtree(last)
    shutil.copytree(again.checkpoint(12), last)
    trained(again.config_file, again.path)
    output = capsys.readouterr().err
    assert f"{last}: belongs to another training (step 12); resuming from" in output
    assert_same_end(finished, again)


@pytest.mark.parametrize(
    "setting",
    [
        "training.selection_metric=loss",
        "evaluation.bleu.lowercase=true",
        "data.target_language=zh",
        "training.validation_decoding.max_length=7",
    ],
)
def test_scores_of_other_validations_do_not_compare(again, capsys, setting):
    assert len(best_checkpoints(again.step_checkpoints())) == 2
    trained(again.config_file, again.path, setting)
    assert (
        "validation data or metric changed: best-checkpoint tracking restarts"
        in capsys.readouterr().err
    )
    # What it ends with is judged once more, and nothing else is.
    last = again.checkpoint(24)
    assert best_checkpoints(again.step_checkpoints()) == [last]
    assert again.pointed("best") == last
    state = load_progress(last)
    assert state.best_score == state.score
    trained(again.config_file, again.path)
    assert "tracking restarts" not in capsys.readouterr().err


def test_the_best_of_another_validation_text_is_kept_until_there_is_a_new_one(
    toy, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        on_step(patch, 14, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run", "training.keep_checkpoints=1")
    valid = toy.parent / "valid.src"
    valid.write_text("b" + valid.read_text()[1:])
    run = RunDirectory(tmp_path / "run")
    bests: list[Path | None] = []
    with monkeypatch.context() as patch:
        on_step(patch, 19, lambda: bests.append(run.pointed("best")))
        trained(toy, run.path, "training.keep_checkpoints=1")
    assert bests == [run.checkpoint(12)]
    assert run.pointed("best") == run.checkpoint(24)
    assert run.step_checkpoints() == [run.checkpoint(24)]


def test_several_damaged_checkpoints_are_all_named(finished, again, capsys):
    for step in (24, 18):
        flip_a_bit(again.checkpoint(step) / "model.safetensors")
    (again.path / "last").unlink()
    trained(again.config_file, again.path)
    output = capsys.readouterr().err
    assert f"{again.path / 'last'}: does not exist; resuming from step-000012\n" in output
    for step in (24, 18):
        assert (
            f"{again.checkpoint(step)}: is damaged: model.safetensors does not match its checksum; "
            "resuming from step-000012\n"
        ) in output
    assert_same_end(finished, again)


def test_without_a_whole_checkpoint_nothing_is_lost_or_begun(again):
    steps = again.step_checkpoints()
    for checkpoint in steps:
        (checkpoint / "state.json").unlink()
    before = sorted(again.path.rglob("*"))
    with pytest.raises(CheckpointError) as caught:
        trained(again.config_file, again.path)
    problems = "; ".join(f"{x}: is incomplete: state.json is missing" for x in reversed(steps))
    assert str(caught.value) == (
        f"{again.path}: has no intact checkpoint ({problems}); "
        "restore one, or start over with `fresh=True`"
    )
    assert sorted(again.path.rglob("*")) == before


def test_an_old_checkpoint_that_is_damaged_does_not_end_the_training(again):
    shutil.rmtree(again.checkpoint(24))
    flip_a_bit(again.checkpoint(12) / "state.json")
    trained(again.config_file, again.path)
    assert again.pointed("last") == again.checkpoint(24)


def test_a_validation_that_a_signal_left_out_is_made_up_for(finished, toy, tmp_path, monkeypatch):
    for step in (12, 24):
        with monkeypatch.context() as patch:
            on_step(patch, step, lambda: signal.raise_signal(signal.SIGTERM))
            with pytest.raises(Interrupted):
                trained(toy, tmp_path / "run")
    run = trained(toy, tmp_path / "run")
    assert_same_end(finished, run)


def test_a_signal_ends_a_validation_and_the_next_sitting_makes_up_for_it(
    finished, toy, tmp_path, monkeypatch
):
    def signalled(*arguments: object, on_done: Callable[[int], object], **options: object):
        signal.raise_signal(signal.SIGTERM)
        on_done(1)
        raise AssertionError("the validation went on")

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "validate", signalled)
        for step in (12, 12, 12):
            with pytest.raises(Interrupted) as caught:
                trained(toy, tmp_path / "run")
            assert f"interrupted; saved at step {step};" in str(caught.value)
    run = trained(toy, tmp_path / "run")
    assert_same_end(finished, run)


def test_a_validation_that_was_made_up_for_and_not_saved_is_reported_once(
    finished, toy, tmp_path, monkeypatch
):
    def killed(*_: object) -> Never:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        on_step(patch, 12, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run")
        patch.setattr(run_module, "take_checkpoint", killed)
        with pytest.raises(ZeroDivisionError):
            trained(toy, tmp_path / "run")
    assert_same_end(finished, trained(toy, tmp_path / "run"))


def test_torn_reports_and_samples_of_ones_own_do_not_keep_a_run_from_going_on(
    finished, toy, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        on_step(patch, 18, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    with run.metrics_file.open("ab") as metrics:
        metrics.write(b'{"kind": "train", "step\xff\xfe')
    own = run.samples / "step-000012-of-mine.txt"
    own.write_text("mine")
    trained(toy, run.path)
    assert own.read_text() == "mine"
    assert_same_end(finished, run)


def test_float16_with_its_loss_scale_goes_on_to_the_bit(toy, tmp_path, monkeypatch):
    settings = ("training.precision=float16", "training.max_steps=12")
    # A scale that overflows, and that has to be what it was after the break.
    monkeypatch.setattr(recovery, "INITIAL_LOSS_SCALE", 2.0**40)
    monkeypatch.setattr(recovery, "GROWTH_INTERVAL", 5)
    unbroken = trained(toy, tmp_path / "unbroken", *settings)
    with monkeypatch.context() as patch:
        on_step(patch, 10, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run", *settings)
    run = trained(toy, tmp_path / "run", *settings)
    assert_same_end(unbroken, run)
    factors = [line["loss_scale"] for line in kinds(run, "train")]
    assert max(factors) < 2.0**40
    assert len(set(factors)) > 1


def test_on_a_device_of_another_precision_the_loss_scale_begins_anew(
    toy, tmp_path, monkeypatch, capsys
):
    def sitting(precision: torch.dtype) -> RunDirectory:
        monkeypatch.setattr(run_module, "resolve_precision", lambda name, device: precision)
        return trained(toy, tmp_path / "run", "training.precision=auto")

    with monkeypatch.context() as patch:
        on_step(patch, 8, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            sitting(torch.bfloat16)
    run = sitting(torch.float16)
    assert (
        f"{run.path}: precision was bfloat16 and is float16 now, so the numbers may differ\n"
    ) in capsys.readouterr().err
    factors = {line["step"]: line["loss_scale"] for line in kinds(run, "train")}
    assert factors[8] == 1.0
    assert factors[10] == recovery.INITIAL_LOSS_SCALE


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_every_optimizer_goes_on_to_the_bit(toy, tmp_path, monkeypatch, kind):
    settings = (f"training.optimizer={{kind: {kind}}}", "training.max_steps=12")
    unbroken = trained(toy, tmp_path / "unbroken", *settings)
    with monkeypatch.context() as patch:
        on_step(patch, 10, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run", *settings)
    assert_same_end(unbroken, trained(toy, tmp_path / "run", *settings))


# ------------------------------------------------ gradients that are not finite


def in_second_epoch(*indices: int) -> Callable[[DataPosition], bool]:
    return lambda position: position.epoch == 1 and position.batch in indices


def kinds(run: RunDirectory, kind: str) -> list[dict[str, object]]:
    return [line for line in reported(run) if line["kind"] == kind]


def test_single_bad_batches_are_left_out(toy, tmp_path, monkeypatch, capsys):
    poison(monkeypatch, in_second_epoch(1, 3))
    run = trained(toy, tmp_path / "run")
    state = load_progress(run.pointed("last"))
    assert state.skipped_batches == ((1, 1), (1, 3))
    assert (state.step, state.num_rollbacks, state.learning_rate_factor) == (24, 0, 1.0)
    skips = kinds(run, "skip")
    assert [(line["epoch"], line["batch"]) for line in skips] == [(1, 1), (1, 3)]
    step = skips[0]["step"]
    assert (
        f"step {step}: loss inf, gradient norm nan: batch skipped, weights unchanged\n"
    ) in capsys.readouterr().err


def test_bad_batches_in_a_row_take_the_training_back(toy, tmp_path, monkeypatch, capsys):
    poison(monkeypatch, in_second_epoch(1, 2, 3))
    run = trained(toy, tmp_path / "run")
    training = load_config(toy).training
    schedule = build_schedule(training.schedule, peak=5e-3, max_steps=24)
    state = load_progress(run.pointed("last"))
    assert state.skipped_batches == ((1, 1), (1, 2), (1, 3))
    assert (state.step, state.num_rollbacks, state.learning_rate_factor) == (24, 1, 0.5)
    (rollback,) = kinds(run, "rollback")
    assert rollback["from_step"] > rollback["step"] > 0
    assert (
        f"step {rollback['from_step']}: too many consecutive batches were not finite: rolling "
        f"back to step {rollback['step']} with 0.5 of the learning rate, skipping those batches\n"
    ) in capsys.readouterr().err
    for line in kinds(run, "train"):
        factor = 0.5 if line["step"] > rollback["step"] else 1.0
        assert line["learning_rate"] == schedule(line["step"]) * factor
    steps = [line["step"] for line in kinds(run, "train")]
    assert steps == sorted(set(steps))


def test_a_rollback_brings_back_no_score_of_another_validation(toy, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        on_step(patch, 14, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(toy, tmp_path / "run")
    bad: list[DataPosition] = []

    def is_bad(position: DataPosition) -> bool:
        if len(bad) < 3 and position not in bad:
            bad.append(position)
        return position in bad

    poison(monkeypatch, is_bad)
    run = trained(toy, tmp_path / "run", "training.selection_metric=loss")
    (rollback,) = kinds(run, "rollback")
    assert (rollback["from_step"], rollback["step"]) == (15, 12)
    state = load_progress(run.pointed("last"))
    # BLEU would be no less than zero, and better than any loss.
    assert state.best_score == state.score < 0
    assert run.pointed("best") == run.checkpoint(24)


ROLLING_BACK = {
    "ema": ("training.ema_decay=0.9", "training.keep_checkpoints=1"),
    "average": ("training.average_checkpoints=3", "training.keep_checkpoints=3"),
}


@pytest.fixture(scope="module", params=ROLLING_BACK.values(), ids=ROLLING_BACK)
def rolling_back(request: pytest.FixtureRequest) -> tuple[str, ...]:
    settings: tuple[str, ...] = request.param
    return settings


@pytest.fixture(scope="module")
def rolled_back(
    rolling_back: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> RunDirectory:
    """A run that went back once, and ended."""
    folder = tmp_path_factory.mktemp("rolled_back")
    with pytest.MonkeyPatch.context() as patch:
        poison(patch, in_second_epoch(0, 2, 3, 4))
        run = trained(write_toy(folder / "data"), folder / "run", *rolling_back)
    assert len(kinds(run, "rollback")) == 1
    return run


@pytest.mark.parametrize("killed_at", [10, 13, 23])
def test_a_rollback_survives_a_kill_to_the_bit(
    rolling_back, rolled_back, toy, tmp_path, monkeypatch, killed_at
):
    poison(monkeypatch, in_second_epoch(0, 2, 3, 4))

    def kill() -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        on_step(patch, killed_at, kill)
        with pytest.raises(ZeroDivisionError):
            trained(toy, tmp_path / "run", *rolling_back)
    run = trained(toy, tmp_path / "run", *rolling_back)
    assert_same_end(rolled_back, run)
    states = [replace(load_progress(x.pointed("last")), seconds=0.0) for x in (rolled_back, run)]
    assert states[0] == states[1]


def test_a_rollback_does_not_depend_on_interruptions(
    rolling_back, rolled_back, toy, tmp_path, monkeypatch
):
    poison(monkeypatch, in_second_epoch(0, 2, 3, 4))
    (rollback,) = kinds(rolled_back, "rollback")
    with monkeypatch.context() as patch:
        on_step(patch, rollback["from_step"] - 1, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted) as caught:
            trained(toy, tmp_path / "run", *rolling_back)
    assert f"saved at step {rollback['from_step'] - 1};" in str(caught.value)
    assert rollback["from_step"] - 1 > rollback["step"]
    assert_same_end(rolled_back, trained(toy, tmp_path / "run", *rolling_back))


def test_before_the_first_checkpoint_the_training_goes_back_to_its_beginning(
    toy, tmp_path, monkeypatch
):
    settings = ("training.ema_decay=0.9", "training.schedule={kind: constant, warmup_steps: 1}")
    poison(monkeypatch, lambda position: position.epoch == 0 and position.batch in (2, 3, 4))
    run = trained(toy, tmp_path / "run", *settings)
    (rollback,) = kinds(run, "rollback")
    assert rollback["step"] == 0
    # Half the rate from the very beginning, and never those batches.
    monkeypatch.undo()

    def without(*text: Any, **options: Any):
        position = DataPosition()
        for batches, following in training_micro_batches(*text, **options):
            if not (position.epoch == 0 and position.batch in (2, 3, 4)):
                yield batches, following
            position = following

    monkeypatch.setattr(setup, "training_micro_batches", without)
    half = "training.optimizer.learning_rate=2.5e-3"
    other = trained(toy, tmp_path / "other", *settings, half)
    for name in ("model", "trained"):
        one, two = (load_file(x.pointed("last") / f"{name}.safetensors") for x in (run, other))
        for key in one:
            assert torch.equal(one[key], two[key]), key


def test_what_is_saved_behind_a_way_back_to_the_beginning_is_gone_on_from(
    toy, tmp_path, monkeypatch
):
    once = ("training.save_every=12",)
    poison(monkeypatch, lambda position: position.epoch == 0 and position.batch in (4, 5, 6))
    unbroken = trained(toy, tmp_path / "unbroken", *once)

    def interrupted(factor: float, step: int) -> None:
        def signalled(state: TrainState, *arguments: Any):
            for taken in train_steps(state, *arguments):
                if (state.progress.learning_rate_factor, taken.step) == (factor, step):
                    signal.raise_signal(signal.SIGTERM)
                yield taken

        with monkeypatch.context() as patch:
            patch.setattr(run_module, "train_steps", signalled)
            with pytest.raises(Interrupted) as caught:
                trained(toy, tmp_path / "run", *once)
        assert f"saved at step {step};" in str(caught.value)

    run = RunDirectory(tmp_path / "run")
    interrupted(1.0, step=4)
    # Back at the beginning and not as far as before: what counts is the later one.
    interrupted(0.5, step=3)
    assert run.step_checkpoints() == [run.checkpoint(3)] == [run.pointed("last")]
    trained(toy, run.path, *once)
    one, two = (load_file(x.pointed("last") / "model.safetensors") for x in (unbroken, run))
    for key in one:
        assert torch.equal(one[key], two[key]), key


def test_a_checkpoint_that_no_step_leads_on_from_is_not_gone_back_to(
    finished, toy, tmp_path, monkeypatch
):
    ends = load_progress(finished.checkpoint(12))
    bad = [DataPosition(ends.data_position[0], ends.data_position[1] + i) for i in range(3)]
    poison(monkeypatch, lambda position: position in bad)
    run = trained(toy, tmp_path / "run")
    assert [line["step"] for line in kinds(run, "rollback")] == [6]


def test_a_training_that_keeps_diverging_ends_and_says_where_it_begins(toy, tmp_path, monkeypatch):
    models = []

    def kept(*arguments: Any, **options: Any):
        models.append(build_network(*arguments, **options))
        return models[-1]

    monkeypatch.setattr(setup, "build_network", kept)

    def ruining(*arguments: Any, **options: Any):
        for taken in train_steps(*arguments, **options):
            if taken.step == 9:
                models[0].get_parameter("decoder.layers.0.feedforward.down.weight").data.fill_(
                    math.nan
                )
            yield taken

    monkeypatch.setattr(run_module, "train_steps", ruining)
    with pytest.raises(TrainingError) as caught:
        trained(toy, tmp_path / "run")
    assert str(caught.value) == (
        "step 10: the training diverged again after 3 rollbacks "
        "(loss nan, gradient norm nan, first in decoder.layers.0.feedforward.down); "
        "lower training.optimizer.learning_rate or lengthen the warm-up"
    )
    rollbacks = kinds(RunDirectory(tmp_path / "run"), "rollback")
    assert [line["learning_rate_factor"] for line in rollbacks] == [0.5, 0.25, 0.125]


def test_memory_that_runs_out_before_the_first_step_is_told(toy, tmp_path, monkeypatch):
    def full(*_: object) -> Never:
        raise MemoryError

    monkeypatch.setattr(run_module, "init_model", full)
    with pytest.raises(TrainingError) as caught:
        trained(toy, tmp_path / "run")
    assert str(caught.value).startswith(f"{tmp_path / 'run'}: memory ran out; ")


def test_memory_that_runs_out_is_counted_and_told_once(toy, tmp_path, monkeypatch, capsys):
    def limited(model: Seq2Seq, source: torch.Tensor, *rest: Any) -> torch.Tensor:
        if model.training and len(source) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return hidden_states(model, source, *rest)

    hidden_states = Seq2Seq.hidden_states
    monkeypatch.setattr(Seq2Seq, "hidden_states", limited)
    run = trained(toy, tmp_path / "run")
    events = kinds(run, "memory")
    assert len(events) > 1
    first = events[0]
    told = (
        f"step {first['step']}: memory ran out; redone in {first['num_pieces']} pieces, as is "
        "every step that needs it; a larger training.gradient_accumulation_steps saves the time\n"
    )
    output = capsys.readouterr().err
    assert output.count("memory ran out") == 1
    assert told in output


def start_and_wait_for(config_file: Path, run: Path, line: str) -> subprocess.Popen[str]:
    """Start a training in a process of its own, and return when it has printed a line."""
    process = forked_tformer("train", config_file, "--run", run, stderr=subprocess.PIPE)
    assert process.stderr is not None
    for printed in process.stderr:
        if line in printed:
            return process
    raise AssertionError(f"the training ended without printing {line!r}")


def test_training_stops_when_it_gets_no_better(toy, tmp_path, capsys):
    # So high a learning rate ruins the model: the first validation stays the best.
    settings = (
        "training.patience=2",
        "training.validate_every=3",
        "training.selection_metric=loss",
    )
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


def test_an_equal_score_is_the_best_and_no_better():
    training = TrainingConfig(patience=3)
    progress = TrainingProgress()
    scores = [0.0, 0.0, 2.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0]
    best_steps, num_bad = [], []
    for step, score in enumerate(scores, start=1):
        assert not is_finished(progress, training)
        progress = scored(replace(progress, step=step), score, training)
        best_steps.append(progress.best_step)
        num_bad.append(progress.num_bad_validations)
    assert best_steps == [1, 2, 3, 3, 5, 6, 7, 8, 9]
    assert num_bad == [0, 1, 0, 1, 2, 0, 1, 2, 3]
    assert is_finished(progress, training)


def test_patience_counts_validations_since_the_last_better_one(toy, tmp_path):
    run = trained(toy, tmp_path / "run", "training.validate_every=2", "training.keep_checkpoints=9")
    best, stale = -1.0, 0
    scores = {x["step"]: x["bleu"] for x in reported(run) if x["kind"] == "valid"}
    for step, score in sorted(scores.items()):
        best, stale = (score, 0) if score > best else (best, stale + 1)
        if run.checkpoint(step).exists():
            state = load_progress(run.checkpoint(step))
            assert (state.score, state.best_score, state.num_bad_validations) == (
                score,
                best,
                stale,
            )


def test_a_validation_loss_that_is_no_number_gives_way_to_any_that_is_one(
    toy, tmp_path, monkeypatch
):
    def overflowing(*arguments: Any, **options: Any) -> Validation:
        validation = validate(*arguments, **options)
        if next(losses) is None:
            return validation
        return replace(validation, likelihood=replace(validation.likelihood, loss=math.nan))

    # The first and the third of four overflow, as in float16 a long line may.
    losses = iter([math.nan, None, math.nan, None])
    monkeypatch.setattr(run_module, "validate", overflowing)
    settings = (
        "training.selection_metric=loss",
        "training.validate_every=6",
        "training.keep_best=2",
    )
    run = trained(toy, tmp_path / "run", *settings)
    best = [line["step"] for line in kinds(run, "valid") if line["is_best"]]
    assert best == [6, 12, 24]
    assert best_checkpoints(run.step_checkpoints())[:2] == [run.checkpoint(24), run.checkpoint(12)]


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
    with_ema = trained(toy, tmp_path / "ema", "training.ema_decay=0.9")
    last = with_ema.pointed("last")
    trained_weights = load_file(last / "trained.safetensors")
    plain_weights = load_file(plain.pointed("last") / "model.safetensors")
    for name, weight in plain_weights.items():
        # The EMA follows the training without touching it.
        assert torch.equal(trained_weights[name], weight)
    config = load_config(with_ema.config_file)
    ema = load_trained_model(with_ema, "last")
    evaluation = validate(ema.model, ema.tokenizers, config, CPU, torch.float32)
    reports = [line for line in reported(with_ema) if line["kind"] == "valid"]
    assert reports[-1]["loss"] == pytest.approx(evaluation.likelihood.loss, rel=1e-6)
    assert reports[-1]["loss"] != [x for x in reported(plain) if x["kind"] == "valid"][-1]["loss"]


def test_the_average_of_a_run_is_the_weighted_sum_of_its_weights_after_each_step(
    toy, tmp_path, monkeypatch
):
    history: list[torch.Tensor] = []

    def watched(train_state: TrainState, *arguments: Any, **options: Any):
        weight = train_state.model.get_parameter("decoder.layers.0.feedforward.up.weight")
        history.append(weight.detach().double())
        for taken in train_steps(train_state, *arguments, **options):
            history.append(weight.detach().double())
            yield taken

    monkeypatch.setattr(run_module, "train_steps", watched)
    length = ("training.max_steps=7", "training.validate_every=7")
    run = trained(toy, tmp_path / "run", *length, "training.ema_decay=0.9999")
    assert len(history) == 8
    expected = history[0]
    for step, value in enumerate(history[1:], start=1):
        decay = (1 + step) / (10 + step)
        expected = decay * expected + (1 - decay) * value
    ema = load_file(run.pointed("last") / "model.safetensors")
    torch.testing.assert_close(
        ema["decoder.layers.0.feedforward.up.weight"].double(),
        expected,
        rtol=1e-5,
        atol=1e-6,
    )


TWO_THREADS = """
import signal, sys
from pathlib import Path
import torch
from tformer_cli.config.load import load_config
from tformer_cli.errors import Interrupted
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training import trainer as run_module
from tformer_cli.training.step import train_steps
from tformer_cli.training.trainer import train

def signalled(*arguments, **options):
    for taken in train_steps(*arguments, **options):
        if taken.step == 2:
            signal.raise_signal(signal.SIGTERM)
        yield taken

torch.set_num_threads(2)
config, folder = Path(sys.argv[1]), Path(sys.argv[2])
for precision in ("float32", "bfloat16"):
    settings = load_config(config, [*sys.argv[3:], f"training.precision={precision}"])
    unbroken, broken = (
        (settings, RunDirectory(folder / f"{name}-{precision}"))
        for name in ("unbroken", "broken")
    )
    train(*unbroken, device=torch.device("cpu"))
    run_module.train_steps = signalled
    try:
        train(*broken, device=torch.device("cpu"))
        raise AssertionError("nothing came between")
    except Interrupted:
        run_module.train_steps = train_steps
    train(*broken, device=torch.device("cpu"))
"""


@pytest.mark.slow
def test_two_threads_go_on_to_the_bit_in_float32_and_in_bfloat16(tmp_path):
    config_file = write_toy(tmp_path / "data", pairs=500)
    script = tmp_path / "two_threads.py"
    script.write_text(TWO_THREADS)
    # Tensors of more than 32,768 numbers, which torch divides among its threads.
    wide = ("training.batch_tokens=800", "model.dim=64", "model.dropout=0.3")
    steps = ("training.max_steps=6", "training.validate_every=6", "training.report_every=1")
    # A process of its own, whose threads give the processor away while they wait.
    environment = {**os.environ, "GOMP_SPINCOUNT": "0"}
    words = [sys.executable, str(script), str(config_file), str(tmp_path), *wide, *steps]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for precision in ("float32", "bfloat16"):
        runs = [RunDirectory(tmp_path / f"{name}-{precision}") for name in ("unbroken", "broken")]
        assert_same_end(*runs)
        one, two = (replace(load_progress(x.pointed("last")), seconds=0.0) for x in runs)
        assert one == two
        assert one.step == 6
        assert (one.environment["threads"], one.environment["precision"]) == ("2", precision)


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, capsys, monkeypatch):
    """By its own hand, so that it is at the same step on every machine; torture.py chooses none."""
    config = CONFIG.replace("dropout: 0.1", "dropout: 0.3").replace(
        "max_steps: 24", "max_steps: 24\n  gradient_accumulation_steps: 2\n  ema_decay: 0.9"
    )
    # As a processor trains that multiplies it.
    config = config.replace("precision: float32", "precision: bfloat16")
    config_file = write_toy(tmp_path / "data", config=config)
    unbroken = trained(config_file, tmp_path / "unbroken")

    def dying(*arguments: Any, **options: Any) -> Any:
        for taken in train_steps(*arguments, **options):
            yield taken
            if taken.step == 15:
                os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "train_steps", dying)
        assert killed(lambda: trained(config_file, tmp_path / "broken"), sys.maxsize)
    capsys.readouterr()
    broken = trained(config_file, tmp_path / "broken")
    assert "resuming after step 12" in capsys.readouterr().err
    assert_same_end(unbroken, broken)


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
        f"{tmp_path / 'run'}: interrupted; saved at step {step}; re-run the command to resume"
    )


def test_interruption_is_an_error_with_the_exit_code_of_its_signal():
    error = Interrupted("runs/x", "interrupted", signal=15, remedy="go on")
    assert error.exit_code == 143
    assert str(error) == "runs/x: interrupted; go on"
