"""Whether a run folder can be trained in, and a run can resume with a changed config."""

import errno
import fcntl
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from toy import write_toy

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.errors import StorageError, TrainingError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.resume import accepted_changes, locked, trajectory_settings

RUN = RunDirectory(Path("runs/x"))
# What is minimized, how it is moved, and on what.
DECIDING = {
    "optimizer",
    "schedule",
    "label_smoothing",
    "consistency",
    "bidirectional_steps",
    "layer_drop",
    "subword_sampling",
    "source_noise",
    "clip_norm",
    "batch_tokens",
    "max_steps",
    "ema_decay",
    "init_from",
    "tags_first",
    "precision",
}


def test_what_a_config_may_change_is_listed_key_by_key() -> None:
    text = ParallelText(source=Path("/a/test.en"), target=Path("/a/test.de"))
    moved = replace(text, source=Path("/b/test.en"))
    train = (TrainingText(source=Path("/a/train.en"), target=Path("/a/train.de")),)
    before = DataConfig(train=train, valid=text, test={"news": text})
    now = replace(before, test={"news": moved}, source_language="en")
    assert accepted_changes(RUN, Config(data=before), Config(data=before)) == []
    assert accepted_changes(RUN, Config(data=before), Config(data=now)) == [
        "accepted a changed setting: data.source_language: source -> en",
        "accepted a changed setting: data.test.news.source: /a/test.en -> /b/test.en",
    ]


def test_keys_that_decide_what_a_step_computes_last_and_no_others(tmp_path: Path):
    keys = trajectory_settings(load_config(write_toy(tmp_path / "data"))).keys()
    training = {key.split(".")[1] for key in keys if key.startswith("training.")}
    assert training == DECIDING < {part.name for part in fields(TrainingConfig)}
    assert {key.split(".")[0] for key in keys} == {"seed", "data", "tokenizer", "model", "training"}
    assert {key.split(".")[1] for key in keys if key.startswith("data.")} == {"filters"}


def test_a_second_training_is_refused_while_the_first_goes_on(tmp_path):
    run = RunDirectory(tmp_path)
    with locked(run):
        with pytest.raises(TrainingError) as caught, locked(run):
            pass
        assert str(caught.value) == (
            f"{tmp_path}: another process is training here (process {os.getpid()}); "
            "wait for it, or train elsewhere with `run`"
        )
    with locked(run):
        assert run.lock_file.read_text() == f"{os.getpid()}\n"


def test_a_process_that_is_killed_leaves_the_folder_open(tmp_path):
    run = RunDirectory(tmp_path)
    holding = (
        "import fcntl, os, signal\n"
        f"handle = os.open({str(run.lock_file)!r}, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(handle, fcntl.LOCK_EX)\n"
        "os.write(handle, b'a number that is longer than this one')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", holding]).returncode == -9
    with locked(run):
        assert run.lock_file.read_text() == f"{os.getpid()}\n"


def test_file_systems_without_locks_are_trained_on_all_the_same(tmp_path, monkeypatch):
    def refuse(number: int):
        def flock(handle: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        return flock

    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    with locked(RunDirectory(tmp_path)):
        assert (tmp_path / ".lock").exists()
    monkeypatch.setattr(fcntl, "flock", refuse(errno.EIO))
    with pytest.raises(StorageError), locked(RunDirectory(tmp_path)):
        pass


def test_a_link_in_place_of_the_lock_is_refused_and_leaves_what_it_points_at(tmp_path):
    run, precious = RunDirectory(tmp_path), tmp_path / "precious"
    precious.write_text("thesis\n")
    run.lock_file.symlink_to(precious)
    with pytest.raises(StorageError) as caught, locked(run):
        pass
    assert str(caught.value) == f"{run.lock_file}: must be a regular file; remove it"
    assert precious.read_text() == "thesis\n"
