"""Both directions first, then the wanted one: what batches hold, and that nothing moves the border.

A run takes `BOTH` steps in both directions.
"""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from stepping import on_step, poison
from toy import CONFIG, write_toy
from train_states import train_state

from tformer_cli.config.load import load_config
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import CheckpointError, Interrupted
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_progress
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.training.dry_run import dry_run
from tformer_cli.training.setup import TrainingData, load_data
from tformer_cli.training.step import StepBatch, skip_batch
from tformer_cli.training.trainer import train

CPU = torch.device("cpu")
BOTH = 10
BIDIRECTIONAL = f"training.bidirectional_steps={BOTH}"
ONE_TEXT = "  train: [{source: train.src, target: train.tgt}]\n"
# The validation text also trains, with a tag.
TWO_TEXTS = """\
  train:
    - {source: train.src, target: train.tgt}
    - {source: valid.src, target: valid.tgt, tags: [made]}
"""
MADE = 6
Pair = tuple[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Epochs of four batches in both directions, and of two or three in one."""
    config = CONFIG.replace(ONE_TEXT, TWO_TEXTS)
    return write_toy(tmp_path_factory.mktemp("data"), pairs=60, config=config)


@pytest.fixture(scope="module")
def tokenizers(toy: Path) -> Tokenizers:
    config = load_config(toy)
    return build_tokenizers(config.tokenizer, lambda: read_texts(config.data.train), config.seed)


@pytest.fixture(scope="module")
def data(toy: Path, tokenizers: Tokenizers) -> TrainingData:
    return load_data(load_config(toy, [BIDIRECTIONAL]), tokenizers, toy.parent, lambda line: None)


def batches_from(data: TrainingData, progress: TrainingProgress) -> Iterator[StepBatch]:
    # Without the thread that reads ahead.
    return data._batches(train_state(), progress)


def advanced(progress: TrainingProgress, batch: StepBatch) -> TrainingProgress:
    after = batch.next_position
    return replace(progress, step=progress.step + 1, data_position=(after.epoch, after.batch))


def pairs_of(batch: StepBatch) -> Counter[Pair]:
    """The source and the target of each row, without EOS and padding."""
    return Counter(
        (tuple(source[mask].tolist()[:-1]), tuple(target[target_mask].tolist()[:-1]))
        for part in batch.micro_batches
        for source, mask, target, target_mask in zip(
            part.source, part.source_mask, part.target_out, part.target_mask, strict=True
        )
    )


def expected_pairs(toy: Path, tokenizers: Tokenizers) -> tuple[Counter[Pair], Counter[Pair]]:
    """The text, and the text swapped, read from the files; tags come before each source."""
    one, other = Counter(), Counter()
    for name, tags in (("train", ()), ("valid", (MADE,))):
        lines = (
            (toy.parent / f"{name}.{side}").read_text().splitlines() for side in ("src", "tgt")
        )
        for source_line, target_line in zip(*lines, strict=True):
            source = tuple(tokenizers.source.encode(source_line))
            target = tuple(tokenizers.target.encode(target_line))
            one[(*tags, *source), target] += 1
            other[(*tags, *target), source] += 1
    return one, other


def test_epochs_hold_both_directions_and_then_the_wanted_one(toy, tokenizers, data):
    batches = list(islice(batches_from(data, TrainingProgress()), BOTH + 12))
    forward, backward = expected_pairs(toy, tokenizers)
    by_epoch: dict[int, list[int]] = {}
    for index, batch in enumerate(batches):
        by_epoch.setdefault(batch.position.epoch, []).append(index)
    # The last epoch of a phase need not be whole.
    *whole, cut = (steps for steps in by_epoch.values() if steps[0] < BOTH)
    *later, _ = (steps for steps in by_epoch.values() if steps[0] >= BOTH)
    assert len(whole) > 1
    assert len(later) > 2
    assert cut[-1] == BOTH - 1

    def held(steps: list[int]) -> Counter[Pair]:
        return sum((pairs_of(batches[index]) for index in steps), Counter())

    assert all(held(steps) == forward + backward for steps in whole)
    assert held(cut) <= forward + backward
    assert all(held(steps) == forward for steps in later)
    for batch in batches:
        assert all(
            max(part.source.numel(), part.target_in.numel()) <= 300 for part in batch.micro_batches
        )


def test_epochs_differ_and_depend_on_the_seed(toy, tokenizers, data):
    other = replace(data, config=replace(data.config, seed=99))
    courses = [
        [pairs_of(batch) for batch in islice(batches_from(x, TrainingProgress()), BOTH + 6)]
        for x in (data, other)
    ]
    assert courses[0] != courses[1]
    assert courses[0][BOTH : BOTH + 2] != courses[0][BOTH + 3 : BOTH + 5]


def test_each_step_leaves_the_progress_that_the_next_one_goes_on_from(data):
    batches = list(islice(batches_from(data, TrainingProgress()), BOTH + 8))
    progress = TrainingProgress()
    for index, batch in enumerate(batches):
        rest = islice(batches_from(data, progress), len(batches) - index)
        for one, two in zip(batches[index:], rest, strict=True):
            assert (one.position, one.next_position) == (two.position, two.next_position)
            assert torch.equal(one.micro_batches[0].source, two.micro_batches[0].source)
        progress = advanced(progress, batch)


def test_the_border_on_the_end_of_an_epoch_leaves_no_epoch_out(data):
    """Both directions end where an epoch does: the next one is the first of the other phase."""
    num_batches = len(data.bidirectional.plans[0])
    training = replace(data.config.training, bidirectional_steps=num_batches)
    even = replace(data, config=replace(data.config, training=training))
    batches = list(islice(batches_from(even, TrainingProgress()), num_batches + 1))
    assert batches[-2].next_position == batches[-1].position == DataPosition(1, 0)


failures = st.sets(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=12)


@settings(max_examples=50)
@given(failures)
def test_whatever_fails_the_border_is_at_its_step_and_no_batch_comes_twice(data, failing):
    """Each batch that fails begins the batches anew, as in a training."""
    progress, trained = TrainingProgress(), []
    while progress.step < BOTH + 6:
        batch = next(batches_from(data, progress))
        at = batch.position
        store_size = len(data.store)
        is_bidirectional = progress.step < BOTH
        plans = (data.bidirectional if is_bidirectional else data.unidirectional).plans
        assert batch.micro_batches[0].indices.tolist() == plans[at.epoch][at.batch].tolist()
        assert is_bidirectional or int(batch.micro_batches[0].indices.max()) < store_size
        if (at.epoch, at.batch) in failing:
            progress = skip_batch(progress, at, batch.next_position)
        else:
            trained.append((at, is_bidirectional))
            progress = advanced(progress, batch)
    positions = [(at.epoch, at.batch) for at, _ in trained]
    assert positions == sorted(set(positions))
    assert not failing & set(positions)
    # No epoch is of both phases.
    epochs = [{at.epoch for at, is_first in trained if is_first is x} for x in (True, False)]
    assert not epochs[0] & epochs[1]


# ------------------------------------------------ whole runs


def trained(config_file: Path, folder: Path, *overrides: str) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, (BIDIRECTIONAL, *overrides)), run, device=CPU)
    return run


def interrupted(patch: pytest.MonkeyPatch, step: int, toy: Path, folder: Path) -> None:
    with patch.context() as inner:
        on_step(inner, step, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted):
            trained(toy, folder)


def assert_same_end(run: RunDirectory, other: RunDirectory) -> None:
    ends = [x.pointed("last") for x in (run, other)]
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, two = (load_file(end / name) for end in ends)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
    one, two = (replace(load_progress(end), seconds=0.0) for end in ends)
    assert one == two


def kinds(run: RunDirectory, kind: str) -> list[dict[str, object]]:
    lines = map(json.loads, run.metrics_file.read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


@pytest.fixture(scope="module")
def finished(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained(toy, tmp_path_factory.mktemp("runs") / "finished")


@pytest.mark.parametrize("step", [BOTH - 1, BOTH, BOTH + 1])
def test_a_run_that_is_interrupted_ends_as_an_unbroken_one(
    finished, toy, tmp_path, monkeypatch, step
):
    interrupted(monkeypatch, step, toy, tmp_path / "run")
    assert_same_end(finished, trained(toy, tmp_path / "run"))


@pytest.fixture(scope="module")
def positions(data) -> list[tuple[int, int]]:
    """The data position of each step and the one after it."""
    batches = islice(batches_from(data, TrainingProgress()), BOTH + 8)
    return [(batch.position.epoch, batch.position.batch) for batch in batches]


@pytest.fixture(params=["before", "behind", "across"])
def failing(request, positions) -> set[tuple[int, int]]:
    """Three batches in a row that fail, about the border."""
    if request.param == "across":
        # The last batch in both directions, and what comes instead of it: an epoch of its own each.
        epoch = positions[BOTH - 1][0]
        return {positions[BOTH - 1], (epoch + 1, 0), (epoch + 2, 0)}
    first = {"before": BOTH - 4, "behind": BOTH}[request.param]
    return set(positions[first : first + 3])


@pytest.mark.parametrize("step", [BOTH - 2, BOTH])
def test_a_rollback_does_not_depend_on_interruptions(toy, tmp_path, monkeypatch, failing, step):
    poison(monkeypatch, lambda at: (at.epoch, at.batch) in failing)
    unbroken = trained(toy, tmp_path / "unbroken")
    (rollback,) = kinds(unbroken, "rollback")
    assert rollback["step"] == 6 < BOTH
    state = load_progress(unbroken.pointed("last"))
    assert set(state.skipped_batches) == failing
    interrupted(monkeypatch, step, toy, tmp_path / "run")
    assert_same_end(unbroken, trained(toy, tmp_path / "run"))


def test_another_border_is_another_training(finished, toy):
    with pytest.raises(CheckpointError, match="bidirectional_steps was 10 when this run began"):
        trained(toy, finished.path, f"training.bidirectional_steps={BOTH + 1}")


def test_early_stopping_waits_for_the_wanted_direction(toy, tmp_path):
    # So high a learning rate ruins the model: the first validation stays the best.
    settings = (
        "training.patience=2",
        "training.validate_every=2",
        "training.selection_metric=loss",
        "training.optimizer.learning_rate=1.0",
    )
    run = trained(toy, tmp_path / "run", *settings)
    validations = kinds(run, "valid")
    is_bad = [not line["is_best"] for line in validations]
    assert sum(is_bad[: BOTH // 2]) > 2
    counted = is_bad[BOTH // 2 :]
    assert counted[-2:] == [True, True]
    assert validations[-1]["step"] == BOTH + 2 * len(counted) < 24


def test_the_size_of_a_training_names_its_phases(toy, tmp_path, monkeypatch, data, capsys):
    interrupted(monkeypatch, BOTH, toy, tmp_path / "run")
    phases = "24 steps in all (the first 10 in both directions)"
    num_batches = len(data.bidirectional.plans[0])
    assert f"{num_batches} steps in epoch 0, {phases}, on" in capsys.readouterr().err
    # The epochs of a resumed run are those of its phase.
    run = trained(toy, tmp_path / "run")
    epoch, _ = load_progress(run.checkpoint(12)).data_position
    sizes = {x: len(data.unidirectional.plans[x]) for x in (epoch - 1, epoch)}
    assert max(sizes.values()) < num_batches
    said = capsys.readouterr().err
    assert any(f"{sizes[x]} steps in epoch {x}, {phases}, on" in said for x in sizes)


def test_a_dry_run_counts_the_epochs_of_each_phase(toy, tmp_path, data):
    found = dry_run(load_config(toy, [BIDIRECTIONAL]), RunDirectory(tmp_path / "run"), device=CPU)
    both = BOTH / len(data.bidirectional.plans[0])
    alone = (24 - BOTH) / len(data.unidirectional.plans[0])
    assert found.num_bidirectional_epochs == pytest.approx(both)
    assert found.num_epochs == pytest.approx(both + alone)
    epochs = f"({both + alone:.1f} epochs, the first {both:.1f} in both directions)"
    assert f" for 24 steps {epochs}, validations not counted\n" in str(found)
