"""Rehearsals: what they read, what they take, and that nothing is left of them."""

import contextlib
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import CONFIG, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.errors import (
    ConfigError,
    DataError,
    Interrupted,
    TrainingError,
    UsageError,
)
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import load_tokenizers
from tformer_cli.training import rehearsal as rehearsal_module
from tformer_cli.training.rehearsal import (
    OutOfMemory,
    Rehearsal,
    prepared_again,
    rehearsal,
    take_steps,
    take_worst_case_steps,
)
from tformer_cli.training.tokenizers import origin_of, save_tokenizers
from tformer_cli.training.trainer import train
from tformer_cli.training.worst_batch import Shape

CPU = torch.device("cpu")
SHORT = CONFIG.replace("  test:", "  filters: {max_length: 11}\n  test:")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toy config; temporary folders are made under tmp_path/temporary."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return write_toy(tmp_path / "data", config=SHORT)


@contextlib.contextmanager
def rehearsed(toy: Path, *overrides: str) -> Iterator[Rehearsal]:
    run = RunDirectory(toy.parent.parent / "run")
    with rehearsal(load_config(toy, overrides), run, device=CPU) as found:
        yield found


def test_a_rehearsal_leaves_nothing(toy, tmp_path):
    before = set((tmp_path / "data").rglob("*"))
    with rehearsed(toy) as found:
        assert found.run.config_file.is_relative_to(tmp_path / "temporary")
        list(take_steps(found.prepared, 2))
    assert set((tmp_path / "data").rglob("*")) == before
    assert not (tmp_path / "run").exists()
    # torch makes a folder of its own beside.
    assert not list((tmp_path / "temporary").glob("tformer-*"))


def test_a_rehearsal_that_sigterm_ends_leaves_nothing(toy, tmp_path):
    with pytest.raises(Interrupted) as caught, rehearsed(toy) as found:  # noqa: PT012
        assert found.run.config_file.exists()
        signal.raise_signal(signal.SIGTERM)
    assert str(caught.value).startswith(f"{tmp_path}/run: the rehearsal was interrupted; nothing")
    assert not list((tmp_path / "temporary").glob("tformer-*"))


def test_a_large_text_is_sampled_evenly(toy, monkeypatch):
    monkeypatch.setattr(rehearsal_module, "SAMPLE_PAIRS", 100)
    config = load_config(toy)
    (whole,) = config.data.train
    with rehearsed(toy) as found:
        (sample,) = found.prepared.config.data.train
        pairs = list(read_pairs(sample.source, sample.target))
        assert (found.num_pairs, found.share) == (300, 1 / 3)
        assert found.prepared.report.seen == len(pairs) == 100
    lines = list(read_pairs(whole.source, whole.target))
    assert set(pairs) <= set(lines)
    assert not set(pairs) <= set(lines[:250])


def test_a_sample_keeps_every_text_and_its_weight(toy, monkeypatch):
    monkeypatch.setattr(rehearsal_module, "SAMPLE_PAIRS", 100)
    two = (
        "[{source: train.src, target: train.tgt}, {source: test.src, target: test.tgt, weight: 3}]"
    )
    toy.write_text(SHORT.replace("[{source: train.src, target: train.tgt}]", two))
    with rehearsed(toy) as found:
        texts = found.prepared.config.data.train
        assert [text.weight for text in texts] == [1.0, 3.0]
        counts = [len(list(read_pairs(text.source, text.target))) for text in texts]
        assert sum(counts) == 100
        assert counts[1] < 10  # 10 of 310 pairs


def test_a_small_text_is_taken_whole(toy):
    with rehearsed(toy) as found:
        assert found.prepared.config == load_config(toy)
        assert found.share == 1.0


def test_the_tokenizers_of_a_run_are_taken_where_the_config_builds_them(toy, tmp_path, capsys):
    run, config = RunDirectory(tmp_path / "run"), load_config(toy)
    with rehearsed(toy) as found:
        origin = origin_of(config, None, tmp_path / "stores")
        save_tokenizers(found.prepared.tokenizers, origin, run)
    assert "building the vocabulary" in capsys.readouterr().err
    with rehearsed(toy):
        assert "building the vocabulary" not in capsys.readouterr().err
    with rehearsed(toy, "tokenizer.min_frequency=2"):
        assert "building the vocabulary" in capsys.readouterr().err


def test_another_process_finds_what_was_prepared(toy):
    with rehearsed(toy) as found:
        again = prepared_again(found.run, CPU)
        assert load_tokenizers(found.run.tokenizer).fingerprint == again.tokenizers.fingerprint
        assert again.config == found.prepared.config
        one, two = (
            [report.loss for report in take_steps(prepared, 2)]
            for prepared in (found.prepared, again)
        )
        assert one == two


@pytest.mark.parametrize("name", ["train", "valid", "test"])
def test_unequal_files_are_found_in_every_text(toy, name):
    target = toy.parent / f"{name}.tgt"
    lines = target.read_text().splitlines(keepends=True)
    target.write_text("".join(lines[:-1]))
    with pytest.raises(DataError) as caught, rehearsed(toy):
        pass
    assert str(caught.value) == (
        f"{toy.parent}/{name}.src:{len(lines)}: has no counterpart in {target}; "
        f"got {len(lines)} and {len(lines) - 1} lines; "
        "line n of one file must translate line n of the other"
    )


def test_a_folder_of_somebody_else_is_refused_before_anything_is_read(toy, tmp_path):
    (tmp_path / "run" / "eval").mkdir(parents=True)
    (toy.parent / "train.src").write_bytes(b"\xff\n")
    with pytest.raises(UsageError) as caught, rehearsed(toy):
        pass
    assert str(caught.value).startswith(f"{tmp_path}/run: is not empty and not a run folder")


def test_weights_that_a_training_would_begin_with_are_read(toy, tmp_path, capsys):
    first = RunDirectory(tmp_path / "first")
    train(load_config(toy), first, device=CPU)
    after = f"training.init_from={first.path}"
    with rehearsed(toy, after) as found:
        weights = load_file(first.pointed("last") / "model.safetensors")
        for name, parameter in found.prepared.model.named_parameters():
            assert torch.equal(parameter, weights[name])
    assert f"beginning with the weights of {first.pointed('last')}" in capsys.readouterr().err
    with (
        pytest.raises(ConfigError) as caught,
        rehearsed(toy, after, "model.feedforward_dim=32"),
    ):
        pass
    assert str(caught.value).startswith("model.feedforward_dim: must be 64, as in ")


def test_worst_steps_are_taken_at_the_worst_batches(toy):
    with rehearsed(toy) as found:
        shapes = take_worst_case_steps(found.prepared, 60, 2)
    assert {shape: report.step for shape, report in shapes.items()} == {Shape(5, 12): 2}
    assert [report.num_tokens for report in shapes.values()] == [60]


def limited(found: Rehearsal, monkeypatch: pytest.MonkeyPatch, num_tokens: int) -> None:
    """Let memory run out where a batch has more source tokens."""
    wanted_states = found.prepared.model.wanted_states

    def limited_states(source: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        if source.numel() > num_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return wanted_states(source, *rest)

    monkeypatch.setattr(found.prepared.model, "wanted_states", limited_states)


@pytest.mark.parametrize("num_tokens", [11, 12, 59])
def test_a_batch_that_has_to_be_cut_or_cannot_be_does_not_fit(toy, monkeypatch, num_tokens):
    with rehearsed(toy) as found:
        limited(found, monkeypatch, num_tokens)
        with pytest.raises(OutOfMemory):
            take_worst_case_steps(found.prepared, 60, 2)
        assert all(weight.grad is None for weight in found.prepared.model.parameters())


def test_memory_that_runs_out_in_the_optimiser_is_no_less_of_it(toy, monkeypatch):
    def failing() -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with rehearsed(toy) as found:
        monkeypatch.setattr(found.prepared.train_state.optimizer, "step", failing)
        with pytest.raises(OutOfMemory):
            list(take_steps(found.prepared, 1))


def test_other_errors_stay_what_they_are(toy, monkeypatch):
    def failing() -> None:
        raise RuntimeError("shapes")

    with rehearsed(toy) as found:
        monkeypatch.setattr(found.prepared.train_state.optimizer, "step", failing)
        with pytest.raises(RuntimeError, match="shapes"):
            list(take_steps(found.prepared, 1))


def test_a_loss_that_is_no_number_is_an_error(toy):
    with rehearsed(toy) as found:
        with torch.no_grad():
            found.prepared.model.output.weight.fill_(float("nan"))
        with pytest.raises(TrainingError) as caught:
            list(take_steps(found.prepared, 1))
    assert str(caught.value) == (
        "step 1: loss or gradient is no number at the very beginning; "
        "got loss nan, gradient norm nan; "
        "lower training.optimizer.learning_rate, or use training.precision: float32"
    )


def test_a_moving_average_follows(toy):
    with rehearsed(toy, "training.ema_decay=0.9") as found:
        average = found.prepared.average.model.output.weight
        before = average.detach().clone()
        list(take_steps(found.prepared, 1))
        assert not torch.equal(average, before)


def test_processes_of_torchrun_are_refused(toy, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    with (
        pytest.raises(UsageError) as caught,
        rehearsed(toy, "training.gradient_accumulation_steps=2"),
    ):
        pass
    assert str(caught.value) == (
        "torchrun: trainings are rehearsed by one process; got 4 processes; without torchrun, "
        "a process takes as much memory as each of them with training.gradient_accumulation_steps=8"
    )
