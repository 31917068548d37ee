"""Dry runs: their numbers against what trainings really take, and that nothing is left of them."""

import contextlib
import errno
import json
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from toy import CONFIG, MASKED, write_languages, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.bucketing import DataPosition, epoch_plans, training_micro_batches
from tformer_cli.corpus.filters import REASONS, FilterReport
from tformer_cli.corpus.reader import read_pairs, read_texts
from tformer_cli.corpus.store import TokenStore, build_store
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.errors import (
    ConfigError,
    DataError,
    Interrupted,
    OutOfMemory,
    StorageError,
    TrainingError,
    UsageError,
)
from tformer_cli.storage.checkpoint import save_checkpoint
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.special_tokens import NUM_SPECIAL
from tformer_cli.text.tokenizer import build_tokenizers
from tformer_cli.training import dry_run as dry_run_module
from tformer_cli.training.average import averaged_model
from tformer_cli.training.dry_run import (
    BatchShape,
    DryRun,
    checkpoint_size,
    dry_run,
    first_steps,
    max_checkpoints,
    sampled_trainer,
    worst_case_shapes,
    worst_case_steps,
    worst_case_store,
)
from tformer_cli.training.setup import origin_of, save_tokenizers
from tformer_cli.training.trainer import Trainer, train

CPU = torch.device("cpu")
SHORT = CONFIG.replace("  test:", "  filters: {max_length: 11}\n  test:")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toy config; temporary folders are made under tmp_path/temporary."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return write_toy(tmp_path / "data", config=SHORT)


def taken(toy: Path, *overrides: str) -> DryRun:
    return dry_run(load_config(toy, overrides), RunDirectory(toy.parent / "run"), device=CPU)


def store_files(config_file: Path, folder: Path) -> int:
    """Bytes of the store that a training would make, except for its index."""
    config = load_config(config_file)
    data = config.data
    tokenizers = build_tokenizers(config.tokenizer, lambda: read_texts(data.train), config.seed)
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
    assert found.worst_batch in (BatchShape(4, 12), BatchShape(5, 10))
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


def test_a_sample_keeps_the_languages_and_tags_of_each_text(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run_module, "SAMPLE_PAIRS", 60)
    config = load_config(write_languages(tmp_path))
    sampled, num_pairs = dry_run_module._sample(config, tmp_path)
    assert num_pairs == 120
    assert sampled.data.directions == config.data.directions
    of_each = [[data.tags_of(text) for text in data.train] for data in (config.data, sampled.data)]
    assert of_each[0] == of_each[1]
    assert sampled.data.train != config.data.train


def test_figures_of_a_sample_stand_for_the_whole_text(toy, tmp_path, monkeypatch):
    whole = taken(toy)
    monkeypatch.setattr(dry_run_module, "SAMPLE_PAIRS", 150)
    sampled = taken(toy)
    assert (sampled.num_pairs, sampled.sample.seen) == (300, 150)
    assert sampled.store_bytes == pytest.approx(whole.store_bytes, rel=0.1)
    assert sampled.num_epochs == pytest.approx(whole.num_epochs, rel=0.2)


@pytest.mark.parametrize(
    "overrides", [(), ("training.ema_decay=0.9",), ("training.average_checkpoints=2",)]
)
def test_a_checkpoint_is_as_large_as_it_was_said_to_be(toy, tmp_path, overrides):
    config = load_config(toy, overrides)
    with sampled_trainer(config, RunDirectory(tmp_path / "run"), device=CPU) as (trainer, _):
        first_steps(trainer, trainer.data, 1)
        state, folder = trainer.state, tmp_path / "checkpoint"
        average = averaged_model(trainer.run_directory, state, trainer.logger.log)
        save_checkpoint(folder, state.model, state.optimizer, state.progress, average=average)
        expected = 0
        for file in folder.glob("*.safetensors"):
            header = int.from_bytes(file.read_bytes()[:8], "little")
            expected += file.stat().st_size - 8 - header
        assert checkpoint_size(state) == expected


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
    assert most <= max_checkpoints(training)
    if save == validate == 1:
        assert most == max_checkpoints(training)


def test_not_all_steps_of_a_long_training_are_asked_whether_they_save(monkeypatch):
    asked: list[int] = []
    saves_at = TrainingConfig.saves_at
    monkeypatch.setattr(
        TrainingConfig, "saves_at", lambda self, step: asked.append(step) or saves_at(self, step)
    )
    training = TrainingConfig(max_steps=10**6, save_every=100, keep_checkpoints=3, keep_best=1)
    assert max_checkpoints(training) == 6
    assert asked[-1] == 500


def test_a_batch_that_does_not_fit_is_an_error(toy, monkeypatch):
    def failing(*arguments: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(dry_run_module, "train_steps", failing)
    with pytest.raises(OutOfMemory) as caught:
        taken(toy)
    assert str(caught.value) == (
        "training.batch_tokens: the largest batch does not fit into memory (300); "
        "lower it (`tformer train --find-batch` says how far), or set "
        "training.gradient_checkpointing: true"
    )


FOUND = DryRun(
    device="cpu",
    precision="float32",
    num_parameters=1_234_567,
    num_frozen_parameters=0,
    vocabulary_sizes=(2000, 1000),
    unit="pair",
    num_pairs=29_000,
    sample=FilterReport(kept=19_990, too_long=10),
    worst_batch=BatchShape(16, 256),
    worst_seconds=1.5,
    peak_memory_bytes=1109 << 20,
    tokens_per_second=3534.4,
    seconds_per_step=0.54,
    num_steps=3000,
    num_epochs=11.94,
    num_bidirectional_epochs=0.0,
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
        f"{toy.parent}/run: cannot be written (Read-only file system); name a writable path"
    )


def test_a_file_where_the_run_folder_would_be_is_an_error(toy):
    (toy.parent / "run").touch()
    with pytest.raises(StorageError) as caught:
        taken(toy)
    assert str(caught.value) == (
        f"{toy.parent}/run: cannot be written (Not a directory); "
        "there is a file where a folder must be: name another path"
    )


def test_a_text_alone_has_lines(tmp_path, capsys):
    found = taken(write_toy(tmp_path / "data", config=MASKED))
    assert (found.unit, found.num_pairs) == ("line", 300)
    assert "training text: 300 lines" in capsys.readouterr().err


def test_a_dry_run_is_plain_data_for_programs():
    plain = json.loads(json.dumps(FOUND.as_json()))
    assert plain["sample"] == dict.fromkeys(REASONS, 0) | {"kept": 19_990, "too_long": 10}
    assert plain["worst_batch"] == {"rows": 16, "width": 256}
    assert plain.keys() == DryRun.__dataclass_fields__.keys()


@contextlib.contextmanager
def sampled(toy: Path, *overrides: str) -> Iterator[Trainer]:
    run = RunDirectory(toy.parent.parent / "run")
    with sampled_trainer(load_config(toy, overrides), run, device=CPU) as (trainer, _):
        yield trainer


def test_a_dry_run_leaves_nothing(toy, tmp_path):
    before = set((tmp_path / "data").rglob("*"))
    with sampled(toy) as trainer:
        assert trainer.run_directory.config_file.is_relative_to(tmp_path / "temporary")
        first_steps(trainer, trainer.data, 2)
    assert set((tmp_path / "data").rglob("*")) == before
    assert not (tmp_path / "run").exists()
    # torch makes a folder of its own beside.
    assert not list((tmp_path / "temporary").glob("tformer-*"))


def test_a_dry_run_that_sigterm_ends_leaves_nothing(toy, tmp_path):
    with pytest.raises(Interrupted) as caught, sampled(toy) as trainer:  # noqa: PT012
        assert trainer.run_directory.config_file.exists()
        signal.raise_signal(signal.SIGTERM)
    assert str(caught.value).startswith(f"{tmp_path}/run: was interrupted and left nothing")
    assert not list((tmp_path / "temporary").glob("tformer-*"))


def test_a_large_text_is_sampled_evenly(toy, monkeypatch):
    monkeypatch.setattr(dry_run_module, "SAMPLE_PAIRS", 100)
    config = load_config(toy)
    (whole,) = config.data.train
    run = RunDirectory(toy.parent.parent / "run")
    with sampled_trainer(config, run, device=CPU) as (trainer, num_pairs):
        (sample,) = trainer.config.data.train
        pairs = list(read_pairs(sample.source, sample.target))
        assert num_pairs == 300
        assert trainer.data.report.seen == len(pairs) == 100
    lines = list(read_pairs(whole.source, whole.target))
    assert set(pairs) <= set(lines)
    assert not set(pairs) <= set(lines[:250])


def test_a_sample_keeps_every_text_and_its_weight(toy, monkeypatch):
    monkeypatch.setattr(dry_run_module, "SAMPLE_PAIRS", 100)
    two = (
        "[{source: train.src, target: train.tgt}, {source: test.src, target: test.tgt, weight: 3}]"
    )
    toy.write_text(SHORT.replace("[{source: train.src, target: train.tgt}]", two))
    with sampled(toy) as trainer:
        texts = trainer.config.data.train
        assert [text.weight for text in texts] == [1.0, 3.0]
        counts = [len(list(read_pairs(text.source, text.target))) for text in texts]
        assert sum(counts) == 100
        assert counts[1] < 10  # 10 of 310 pairs


def test_a_small_text_is_taken_whole(toy):
    with sampled(toy) as trainer:
        assert trainer.config == load_config(toy)
        assert trainer.data.report.seen == 300


def test_the_tokenizers_of_a_run_are_taken_where_the_config_builds_them(toy, tmp_path, capsys):
    run, config = RunDirectory(tmp_path / "run"), load_config(toy)
    with sampled(toy) as trainer:
        origin = origin_of(config, None, tmp_path / "stores")
        save_tokenizers(trainer.tokenizers, origin, run)
    assert "building the vocabulary" in capsys.readouterr().err
    with sampled(toy):
        assert "building the vocabulary" not in capsys.readouterr().err
    with sampled(toy, "tokenizer.min_frequency=2"):
        assert "building the vocabulary" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train", "valid", "test"])
def test_unequal_files_are_found_in_every_text(toy, name):
    target = toy.parent / f"{name}.tgt"
    lines = target.read_text().splitlines(keepends=True)
    target.write_text("".join(lines[:-1]))
    with pytest.raises(DataError) as caught, sampled(toy):
        pass
    assert str(caught.value) == (
        f"{toy.parent}/{name}.src:{len(lines)}: has no counterpart in {target} "
        f"({len(lines)} and {len(lines) - 1} lines); "
        "line n of one file must translate line n of the other"
    )


def test_a_folder_of_somebody_else_is_refused_before_anything_is_read(toy, tmp_path):
    (tmp_path / "run" / "eval").mkdir(parents=True)
    (toy.parent / "train.src").write_bytes(b"\xff\n")
    with pytest.raises(UsageError) as caught, sampled(toy):
        pass
    assert str(caught.value).startswith(f"{tmp_path}/run: is not empty and not a run folder")


def test_weights_that_a_training_would_begin_with_are_read(toy, tmp_path, capsys):
    first = RunDirectory(tmp_path / "first")
    train(load_config(toy), first, device=CPU)
    after = f"training.init_from={first.path}"
    with sampled(toy, after) as trainer:
        weights = load_file(first.pointed("last") / "model.safetensors")
        for name, parameter in trainer.state.model.named_parameters():
            assert torch.equal(parameter, weights[name])
    assert f"initializing from the weights of {first.pointed('last')}" in capsys.readouterr().err
    with (
        pytest.raises(ConfigError) as caught,
        sampled(toy, after, "model.feedforward_dim=32"),
    ):
        pass
    assert str(caught.value).startswith("model.feedforward_dim: must be 64, as in ")


def test_worst_steps_are_taken_at_the_worst_batches(toy):
    with sampled(toy) as trainer:
        shapes = worst_case_steps(trainer, 60, 2)
    assert {shape: report.step for shape, report in shapes.items()} == {BatchShape(5, 12): 2}
    assert [report.num_tokens for report in shapes.values()] == [60]


def test_worst_steps_drop_no_layer(toy):
    with sampled(toy, "training.layer_drop=0.9") as trainer:
        model, passes = trainer.state.model, []
        for stack in model.stacks():
            stack.layers[0].register_forward_hook(lambda *_: passes.append(1))
        worst_case_steps(trainer, 60, 20)
        assert len(passes) == 20 * len(model.stacks())
        first_steps(trainer, trainer.data, 20)
        assert len(passes) < 30 * len(model.stacks())


def limited(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, num_tokens: int) -> None:
    """Let memory run out where a batch has more source tokens."""
    hidden_states = trainer.state.model.hidden_states

    def limited_states(source: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        if source.numel() > num_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return hidden_states(source, *rest)

    monkeypatch.setattr(trainer.state.model, "hidden_states", limited_states)


@pytest.mark.parametrize("num_tokens", [11, 12, 59])
def test_a_batch_that_has_to_be_cut_or_cannot_be_does_not_fit(toy, monkeypatch, num_tokens):
    with sampled(toy) as trainer:
        limited(trainer, monkeypatch, num_tokens)
        with pytest.raises(OutOfMemory):
            worst_case_steps(trainer, 60, 2)
        assert all(weight.grad is None for weight in trainer.state.model.parameters())


def test_memory_that_runs_out_in_the_optimizer_is_no_less_of_it(toy, monkeypatch):
    def failing() -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with sampled(toy) as trainer:
        monkeypatch.setattr(trainer.state.optimizer, "step", failing)
        with pytest.raises(OutOfMemory):
            first_steps(trainer, trainer.data, 1)


@pytest.mark.parametrize("error", [RuntimeError("shapes"), TrainingError("rank 1", "differs")])
def test_other_errors_stay_what_they_are(toy, monkeypatch, error):
    def failing() -> None:
        raise error

    with sampled(toy) as trainer:
        monkeypatch.setattr(trainer.state.optimizer, "step", failing)
        with pytest.raises(type(error)) as caught:
            first_steps(trainer, trainer.data, 1)
    assert caught.value is error


def test_a_loss_that_is_no_number_is_an_error(toy):
    with sampled(toy) as trainer:
        with torch.no_grad():
            trainer.state.model.output.weight.fill_(float("nan"))
        with pytest.raises(TrainingError) as caught:
            first_steps(trainer, trainer.data, 1)
    assert str(caught.value) == (
        "step 1: loss or gradient is no number at the very beginning "
        "(loss nan, gradient norm nan); "
        "lower training.optimizer.learning_rate, or use training.precision: float32"
    )


def test_a_moving_average_follows(toy):
    with sampled(toy, "training.ema_decay=0.9") as trainer:
        ema = trainer.state.ema.model.output.weight
        before = ema.detach().clone()
        first_steps(trainer, trainer.data, 1)
        assert not torch.equal(ema, before)


def test_processes_of_torchrun_are_refused(toy, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    with (
        pytest.raises(UsageError) as caught,
        sampled(toy, "training.gradient_accumulation_steps=2"),
    ):
        pass
    assert str(caught.value) == (
        "torchrun: a dry run is for one process (4 processes); without torchrun, "
        "a process takes as much memory as each of them with training.gradient_accumulation_steps=8"
    )


def groups(store: TokenStore, training: TrainingConfig, seed: int = 1):
    return (
        batches
        for batches, _ in training_micro_batches(
            store,
            epoch_plans(store, batch_tokens=training.batch_tokens, seed=seed),
            accumulate=training.gradient_accumulation_steps,
            data_position=DataPosition(),
        )
    )


def cost(batch: Batch) -> tuple[int, int]:
    """Tokens of a micro-batch on its longer side, and pairs of them."""
    width = max(batch.source.shape[1], batch.target_in.shape[1])
    return len(batch.source) * width, len(batch.source) * width**2


def text(*rows: tuple[int, int]) -> TokenStore:
    return build_store(([NUM_SPECIAL] * source, [NUM_SPECIAL] * target) for source, target in rows)


budgets = st.builds(
    TrainingConfig,
    batch_tokens=st.integers(20, 120),
    gradient_accumulation_steps=st.sampled_from([1, 2, 3, 8]),
)


def worst_costs(training: TrainingConfig, max_length: int) -> np.ndarray:
    """The highest number of tokens and of pairs of tokens of the micro-batches at those shapes."""
    costs = [
        cost(batch)
        for shape in worst_case_shapes(training, max_length)
        for batch in next(groups(text(*[(shape.width - 1,) * 2] * shape.rows), training))
    ]
    return np.max(costs, axis=0)


@settings(max_examples=15)
@given(
    budgets,
    st.integers(3, 19),
    st.lists(st.tuples(st.integers(1, 19), st.integers(1, 19)), min_size=1, max_size=80),
)
def test_no_batch_of_a_text_costs_more(training, max_length, lengths):
    store = text(*[(min(s, max_length), min(t, max_length)) for s, t in lengths])
    found = [cost(batch) for group in islice(groups(store, training), 12) for batch in group]
    assert (np.max(found, axis=0) <= worst_costs(training, max_length)).all()


@settings(max_examples=15)
@given(budgets, st.integers(3, 19))
def test_some_batch_of_equal_lengths_costs_as_much(training, max_length):
    costs = []
    for width in range(2, max_length + 2):
        for rows in range(1, training.batch_tokens // width + 1):
            part = len(
                np.array_split(range(rows), min(training.gradient_accumulation_steps, rows))[0]
            )
            costs.append((part * width, part * width**2))
    assert np.max(costs, axis=0).tolist() == worst_costs(training, max_length).tolist()


@pytest.mark.parametrize(
    ("batch_tokens", "max_length", "shapes"),
    [
        (4096, 256, [BatchShape(16, 256)]),
        (300, 256, [BatchShape(1, 257), BatchShape(2, 150)]),
        (4100, 256, [BatchShape(16, 256), BatchShape(20, 205)]),
        (257, 256, [BatchShape(1, 257)]),
    ],
)
def test_most_tokens_and_widest_sentences_may_be_two_shapes(batch_tokens, max_length, shapes):
    assert worst_case_shapes(TrainingConfig(batch_tokens=batch_tokens), max_length) == shapes


def test_a_text_of_a_shape_is_one_batch_without_padding():
    tokenizers = build_tokenizers(CharConfig(), lambda: [("abcde", "fgh")], seed=1)
    store = worst_case_store(BatchShape(3, 7), tokenizers, seed=5)
    ((batch,),) = islice(groups(store, TrainingConfig(batch_tokens=22)), 1)
    assert batch.source.shape == batch.target_in.shape == (3, 7)
    assert batch.source_mask.all()
    assert batch.target_mask.all()
    words = torch.cat((batch.source[:, :-1], batch.target_in[:, 1:]))
    assert words.min() >= NUM_SPECIAL
    assert words.max() < tokenizers.source.size
    assert len(words.unique()) > 2
