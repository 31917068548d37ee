"""Dry runs: their figures against what trainings really take."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy import CONFIG, MASKED, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.pipeline import training_pairs, training_store
from tformer_cli.errors import StorageError, TrainingError
from tformer_cli.storage.checkpoint import save_checkpoint
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import build_tokenizers
from tformer_cli.training import dry_run as dry_run_module
from tformer_cli.training import rehearsal as rehearsal_module
from tformer_cli.training.dry_run import DryRun, checkpoint_size, dry_run, most_checkpoints
from tformer_cli.training.rehearsal import OutOfMemory, rehearsal, take_steps
from tformer_cli.training.worst_batch import Shape

CPU = torch.device("cpu")
SHORT = CONFIG.replace("  test:", "  filters: {max_length: 11}\n  test:")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "data", config=SHORT)


def taken(toy: Path, *overrides: str) -> DryRun:
    return dry_run(load_config(toy, overrides), RunDirectory(toy.parent / "run"), device=CPU)


def store_files(config_file: Path, folder: Path) -> int:
    """Bytes of the store that a training would make, but for its index."""
    config = load_config(config_file)
    data = config.data
    tokenizers = build_tokenizers(config.tokenizer, lambda: training_pairs(data), config.seed)
    training_store(data, tokenizers, folder)
    files = [*folder.glob("*/*.ids"), *folder.glob("*/*.offsets")]
    assert len(files) == 4
    return sum(file.stat().st_size for file in files)


def test_figures_of_a_small_text_are_exact(toy, tmp_path):
    (toy.parent / "train.src").write_text("\n" + "ab c\n" * 120 + f"{'g' * 12}\n")
    (toy.parent / "train.tgt").write_text("\n" + "C BA\n" * 120 + f"{'G' * 12}\n")
    found = taken(toy, "training.batch_tokens=50", "training.max_steps=60")
    assert found.num_pairs == 122
    assert found.sample == FilterReport(kept=120, empty=1, too_long=1)
    # Most pairs of tokens, or most tokens: the clock decides which took longer.
    assert found.worst_batch in (Shape(4, 12), Shape(5, 10))
    assert found.num_epochs == 5.0  # ten pairs of five tokens a step
    assert found.tokens_per_second == pytest.approx(50 / found.seconds_per_step)
    assert (found.num_steps, found.seconds) == (60, 60 * found.seconds_per_step)
    assert found.store_bytes == store_files(toy, tmp_path / "stores")
    assert (
        found.disk_bytes == found.num_checkpoints * found.checkpoint_bytes + 2 * found.store_bytes
    )


def test_a_text_that_the_first_epoch_does_not_see_has_figures(tmp_path):
    config = SHORT.replace("target: train.tgt}", "target: train.tgt, weight: 0.01}")
    found = taken(write_toy(tmp_path / "data", pairs=1, config=config))
    assert (found.num_pairs, found.num_epochs) == (1, 24.0)


def test_figures_of_a_sample_stand_for_the_whole_text(toy, tmp_path, monkeypatch):
    whole = taken(toy)
    monkeypatch.setattr(rehearsal_module, "SAMPLE_PAIRS", 150)
    sampled = taken(toy)
    assert (sampled.num_pairs, sampled.sample.seen) == (300, 150)
    assert sampled.store_bytes == pytest.approx(whole.store_bytes, rel=0.1)
    assert sampled.num_epochs == pytest.approx(whole.num_epochs, rel=0.2)


@pytest.mark.parametrize("overrides", [(), ("training.ema_decay=0.9",)])
def test_a_checkpoint_is_as_large_as_it_was_said_to_be(toy, tmp_path, overrides):
    config = load_config(toy, overrides)
    with rehearsal(config, RunDirectory(tmp_path / "run"), device=CPU) as found:
        prepared = found.prepared
        list(take_steps(prepared, 1))
        average = None if prepared.average is None else prepared.average.model
        folder = tmp_path / "checkpoint"
        optimizer = prepared.train_state.optimizer
        save_checkpoint(folder, prepared.model, optimizer, prepared.beginning(), average=average)
        expected = 0
        for file in folder.glob("*.safetensors"):
            header = int.from_bytes(file.read_bytes()[:8], "little")
            expected += file.stat().st_size - 8 - header
        assert checkpoint_size(prepared) == expected


@given(
    st.integers(1, 60),
    st.integers(1, 30),
    st.integers(1, 60),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_no_more_checkpoints_are_there_at_a_time(max_steps, save, validate, newest, best):
    training = TrainingConfig(
        max_steps=max_steps,
        save_every=save,
        validate_every=validate,
        keep_checkpoints=newest,
        keep_best=best,
    )
    # The worst course: every validation is worse than the one before, and an interruption comes.
    there: list[int] = []
    most = 0
    for step in range(1, max_steps + 1):
        if training.saves_at(step):
            there.append(step)
            most = max(most, len(there) + 1)
            validated = [x for x in there if training.validates_at(x)]
            there = [x for x in there if x in there[-newest:] or x in validated[:best]]
    assert most <= most_checkpoints(training)
    if save == validate == 1:
        assert most == most_checkpoints(training)


def test_a_batch_that_does_not_fit_is_an_error(toy, monkeypatch):
    def failing(*arguments: object) -> None:
        raise OutOfMemory

    monkeypatch.setattr(dry_run_module, "take_worst_case_steps", failing)
    with pytest.raises(TrainingError) as caught:
        taken(toy)
    assert str(caught.value) == (
        "training.batch_tokens: the largest batch does not fit into memory; got 300; "
        "lower it (`tformer train --find-batch` says how far), or set "
        "training.gradient_checkpointing: true"
    )


FOUND = DryRun(
    device="cpu",
    precision="float32",
    num_parameters=1_234_567,
    vocabulary_sizes=(2000, 1000),
    unit="pair",
    num_pairs=29_000,
    sample=FilterReport(kept=19_990, too_long=10),
    worst_batch=Shape(16, 256),
    worst_seconds=1.5,
    peak_memory_bytes=1109 << 20,
    tokens_per_second=3534.4,
    seconds_per_step=0.54,
    num_steps=3000,
    num_epochs=11.94,
    seconds=1620.3,
    num_checkpoints=5,
    checkpoint_bytes=42 << 20,
    store_bytes=3 << 19,
    disk_bytes=213 << 20,
    free_disk_bytes=34_000 << 20,
)


def test_a_dry_run_is_told_in_lines():
    assert str(FOUND).splitlines() == [
        "model: 1,234,567 parameters, vocabulary 1,000 and 2,000, on cpu in float32",
        "training text: 29,000 pairs; in a sample of 20,000 pairs: 19,990 kept; "
        "dropped 10 too long",
        "largest batch: 16 x 256 tokens a side, 1.50 seconds a step",
        "peak memory: 1.1 GiB, validations not counted",
        "speed: 3,534 target tokens/s, 0.54 seconds a step",
        "time: 0:27:00 for 3,000 steps (11.9 epochs), validations not counted",
        "disk: 213.0 MiB at most: 5 checkpoints of 42.0 MiB, encoded text of 1.5 MiB; "
        "33.2 GiB are free",
    ]
    whole = replace(FOUND, num_pairs=20_000, vocabulary_sizes=(2000, 2000))
    assert str(whole).splitlines()[:2] == [
        "model: 1,234,567 parameters, vocabulary 2,000, on cpu in float32",
        "training text: 20,000 pairs: 19,990 kept; dropped 10 too long",
    ]
    alone = replace(FOUND, unit="line")
    assert str(alone).splitlines()[1] == (
        "training text: 29,000 lines; in a sample of 20,000 lines: 19,990 kept; dropped 10 too long"
    )


def test_a_disk_that_does_not_suffice_is_told():
    filled = replace(FOUND, free_disk_bytes=FOUND.disk_bytes - 1)
    assert str(filled).splitlines()[-1].endswith("; 213.0 MiB are free, which is not enough")
    just = replace(FOUND, free_disk_bytes=FOUND.disk_bytes)
    assert str(just).splitlines()[-1].endswith("; 213.0 MiB are free")


def test_a_disk_that_cannot_be_written_is_an_error(toy, monkeypatch):
    asked = []

    def refuse(dir: Path) -> None:
        asked.append(dir)
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(dry_run_module.tempfile, "TemporaryFile", refuse)
    with pytest.raises(StorageError) as caught:
        taken(toy)
    assert asked == [toy.parent]
    assert str(caught.value) == (
        f"{toy.parent}/run: cannot be written; got Read-only file system; "
        "name a place that can be written"
    )


def test_a_file_where_the_run_folder_would_be_is_an_error(toy):
    (toy.parent / "run").touch()
    with pytest.raises(StorageError) as caught:
        taken(toy)
    assert str(caught.value) == (
        f"{toy.parent}/run: cannot be written; got Not a directory; "
        "there is a file where a folder must be: name another place"
    )


def test_a_text_alone_has_lines(tmp_path, capsys):
    found = taken(write_toy(tmp_path / "data", config=MASKED))
    assert (found.unit, found.num_pairs) == ("line", 300)
    assert "training text: 300 lines" in capsys.readouterr().err


def test_a_dry_run_is_plain_data_for_programs():
    plain = json.loads(json.dumps(FOUND.as_json()))
    assert plain["sample"] == {
        "kept": 19_990,
        "empty": 0,
        "too_long": 10,
        "ratio": 0,
        "duplicate": 0,
    }
    assert plain["worst_batch"] == {"rows": 16, "width": 256}
    assert plain.keys() == DryRun.__dataclass_fields__.keys()
