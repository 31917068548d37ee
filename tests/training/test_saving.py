"""What becomes of the checkpoints of a training; whole runs are in test_trainer.py."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy import write_toy
from train_states import INITIAL, train_state

from tformer_cli.config.load import dump_config, load_config
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.checkpoint import save_checkpoint
from tformer_cli.storage.integrity import write_checksums
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.ema import MovingAverage
from tformer_cli.training.resume import checkpoint_before, last_checkpoint
from tformer_cli.training.saving import (
    restart,
    restore_checkpoint,
    take_checkpoint,
)
from tformer_cli.training.step import TrainState

EACH_STEP = TrainingConfig(save_every=1)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    write_text(run.config_file, dump_config(load_config(write_toy(tmp_path / "data"))))
    return run


def moved_state(**changes: int) -> TrainState:
    """A state with an EMA, whose optimizer has its moments."""
    subject = train_state()
    subject.ema = MovingAverage(subject.model, 0.5)
    subject.config = replace(EACH_STEP, **changes)
    # Gradients of zero move no weight, and each weight has its moments.
    for parameter in subject.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    subject.optimizer.step()
    return subject


def save(run: RunDirectory, subject: TrainState, progress: TrainingProgress) -> None:
    subject.progress = progress
    take_checkpoint(run, subject, subject.ema.model)


def states(*scores: float | None) -> list[TrainingProgress]:
    """States at steps 1, 2, ...; None was not validated."""
    found: list[TrainingProgress] = []
    best: tuple[float | None, int | None] = (None, None)
    for step, score in enumerate(scores, 1):
        if score is not None and (best[0] is None or score >= best[0]):
            best = score, step
        found.append(
            replace(INITIAL, step=step, score=score, best_score=best[0], best_step=best[1])
        )
    return found


def names(run: RunDirectory) -> list[int]:
    return [int(checkpoint.name.removeprefix("step-")) for checkpoint in run.step_checkpoints()]


def unheard(line: str) -> None:
    raise AssertionError(line)


def test_the_newest_and_the_best_are_kept(run):
    subject = moved_state(keep_checkpoints=2, keep_best=1)
    for state in states(1.0, 9.0, 3.0, None, None):
        save(run, subject, state)
    assert names(run) == [2, 4, 5]
    assert run.pointed("best") == run.checkpoint(2)
    assert run.pointed("last") == run.checkpoint(5)


def test_what_an_interruption_saved_is_kept_while_it_is_the_last(run):
    subject = moved_state(save_every=2, validate_every=100, keep_checkpoints=1, keep_best=1)
    first, second, third, fourth = states(None, None, None, None)
    save(run, subject, second)
    save(run, subject, third)
    assert names(run) == [2, 3]
    assert last_checkpoint(run, unheard) == run.checkpoint(3)
    # An unbroken training has no third one to go back to.
    assert checkpoint_before(run, 3, subject.config, unheard) == run.checkpoint(2)
    save(run, subject, fourth)
    assert names(run) == [4]
    save(run, subject, replace(first, step=5))
    assert checkpoint_before(run, 5, subject.config, unheard) == run.checkpoint(4)


def test_what_was_due_stays_so_where_others_are_due_from_now_on(run):
    subject = moved_state(save_every=2, validate_every=100, keep_checkpoints=2)
    for state in states(*[None] * 5):
        if state.step in (2, 4, 5):
            save(run, subject, state)
    subject = moved_state(save_every=7, validate_every=100, keep_checkpoints=2)
    restore_checkpoint(run, subject, run.checkpoint(5))
    assert names(run) == [2, 4, 5]
    assert checkpoint_before(run, 6, subject.config, unheard) == run.checkpoint(4)
    save(run, subject, replace(INITIAL, step=7))
    assert names(run) == [4, 7]


def test_going_back_restores_weights_average_and_moments_to_the_bit(run):
    subject = moved_state()
    tensors = {}
    for state in states(1.0, 2.0):
        for parameter in subject.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        subject.optimizer.step()
        subject.ema.update(subject.model, state.step)
        save(run, subject, state)
        tensors[state.step] = snapshot(subject)
    assert restore_checkpoint(run, subject, run.checkpoint(1)) == replace(
        states(1.0)[0], is_scheduled=True
    )
    for one, two in zip(snapshot(subject), tensors[1], strict=True):
        assert torch.equal(one, two)
    restart(subject, train_state().model)
    for parameter, ema, first in zip(
        subject.model.parameters(),
        subject.ema.model.parameters(),
        train_state().model.parameters(),
        strict=True,
    ):
        assert torch.equal(parameter, first)
        assert torch.equal(ema, first)
    assert not subject.optimizer.state


def snapshot(subject: TrainState) -> list[torch.Tensor]:
    weights = [*subject.model.parameters(), *subject.ema.model.parameters()]
    moments = [x for state in subject.optimizer.state.values() for x in state.values()]
    return [tensor.detach().clone() for tensor in weights + moments]


def test_going_back_forgets_what_came_after(run):
    subject = moved_state(keep_checkpoints=9)
    for state in states(5.0, None, 7.0, None):
        save(run, subject, state)
    restore_checkpoint(run, subject, run.checkpoint(2))
    assert names(run) == [1, 2]
    assert run.pointed("last") == run.checkpoint(2)
    assert run.pointed("best") == run.checkpoint(1)


def test_going_back_behind_the_best_leaves_none(run):
    subject = moved_state(keep_checkpoints=9)
    for state in states(None, 7.0):
        save(run, subject, state)
    restore_checkpoint(run, subject, run.checkpoint(1))
    assert run.pointed("best") is None


def test_going_back_to_where_the_best_has_been_dropped_leaves_the_best_of_the_others(run):
    subject = moved_state(keep_checkpoints=3, keep_best=1)
    for state in states(5.0, 3.0, None, 9.0):
        save(run, subject, state)
    assert names(run) == [2, 3, 4]
    progress = restore_checkpoint(run, subject, run.checkpoint(3))
    assert (progress.best_step, progress.best_score) == (2, 3.0)
    assert run.pointed("best") == run.checkpoint(2)
    # The next validation is compared with it.
    (_, state) = states(3.0, 4.0)
    save(run, subject, replace(state, step=4, best_step=4))
    assert run.pointed("best") == run.checkpoint(4)


def test_where_all_validated_checkpoints_are_gone_the_next_one_is_best(run):
    subject = moved_state(keep_checkpoints=9)
    for state in states(5.0, None):
        save(run, subject, state)
    shutil.rmtree(run.checkpoint(1))
    progress = restore_checkpoint(run, subject, run.checkpoint(2))
    assert (progress.best_step, progress.best_score) == (None, None)
    assert run.pointed("best") is None


@pytest.mark.parametrize("content", ["", "/etc", "../checkpoints", "x" * 5000])
def test_a_damaged_best_is_written_anew_when_the_training_goes_on(run, content):
    subject = moved_state()
    for state in states(2.0, 1.0):
        save(run, subject, state)
    (run.path / "best").write_text(content)
    restore_checkpoint(run, subject, run.checkpoint(2))
    assert run.pointed("best") == run.checkpoint(1)


def test_an_average_that_is_best_stays_so(run):
    subject = moved_state()
    for state in states(1.0, 2.0):
        save(run, subject, state)
    average = run.checkpoints / "average-last-2"
    average.mkdir()
    run.point("best", average)
    restore_checkpoint(run, subject, run.checkpoint(2))
    assert run.pointed("best") == average


@pytest.mark.parametrize(
    ("score", "validation_fingerprint", "is_average"),
    [(2.9, "", True), (3.1, "", False), (2.9, "x", False)],
)
def test_only_what_is_better_takes_the_place_of_an_average(
    run, score, validation_fingerprint, is_average
):
    subject = moved_state()
    first, second = states(1.0, score)
    save(run, subject, first)
    average = run.checkpoints / "average-last-1"
    save_checkpoint(average, subject.model, None, replace(first, score=3.0))
    run.point("best", average)
    save(run, subject, replace(second, validation_fingerprint=validation_fingerprint))
    assert run.pointed("best") == (average if is_average else run.checkpoint(2))


def test_what_a_kill_left_half_removed_goes_with_the_next_checkpoint(run, monkeypatch):
    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    subject = moved_state(keep_checkpoints=9)
    for state in states(None, None):
        save(run, subject, state)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            restore_checkpoint(run, subject, run.checkpoint(1))
    assert len(list(run.checkpoints.iterdir())) == 2
    save(run, moved_state(), states(1.0)[0])
    assert list(run.checkpoints.iterdir()) == [run.checkpoint(1)]


def test_going_on_from_the_last_checkpoint_does_not_make_the_run_newer(run):
    subject = moved_state()
    save(run, subject, states(1.0)[0])
    before = (run.path / "last").stat()
    restore_checkpoint(run, subject, run.checkpoint(1))
    assert (run.path / "last").stat() == before


def test_a_checkpoint_that_last_does_not_name_yet_is_not_the_last(run):
    subject = moved_state()
    assert last_checkpoint(run, unheard) is None
    for state in states(1.0, 2.0, 3.0):
        save(run, subject, state)
    run.point("last", run.checkpoint(2))
    assert last_checkpoint(run, unheard) == run.checkpoint(2)


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"\xff\xfe", b"step-9\n", b"../..\n"])
def test_a_damaged_pointer_leads_to_the_newest_checkpoint(run, content):
    subject = moved_state()
    for state in states(1.0, 2.0):
        save(run, subject, state)
    (run.path / "last").write_bytes(content)
    said: list[str] = []
    assert last_checkpoint(run, said.append) == run.checkpoint(2)
    assert len(said) == 1
    assert said[0].endswith("; resuming from step-000002")
    assert said[0].isprintable()


def test_a_state_that_no_training_wrote_leads_to_the_checkpoint_before(run):
    subject = moved_state()
    for state in states(1.0, 2.0):
        save(run, subject, state)
    file = run.checkpoint(2) / "state.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(content | {"data_position": [0, -3]}), encoding="utf-8")
    (run.checkpoint(2) / "SHA256SUMS").unlink()
    write_checksums(run.checkpoint(2))
    said: list[str] = []
    assert last_checkpoint(run, said.append) == run.checkpoint(1)
    assert said == [f"{file}: is damaged (data_position [0, -3]); resuming from step-000001"]


def test_training_goes_back_to_the_newest_checkpoint_that_steps_were_taken_from(run):
    assert checkpoint_before(run, 3, EACH_STEP, unheard) is None
    subject = moved_state()
    for state in states(1.0, 2.0, 3.0):
        save(run, subject, state)
    assert checkpoint_before(run, 4, EACH_STEP, unheard) == run.checkpoint(3)
    assert checkpoint_before(run, 3, EACH_STEP, unheard) == run.checkpoint(2)
    (run.checkpoint(3) / "state.json").unlink()
    said: list[str] = []
    assert checkpoint_before(run, 4, EACH_STEP, said.append) == run.checkpoint(2)
    assert said == [
        f"{run.checkpoint(3)}: is incomplete: state.json is missing; resuming from step-000002"
    ]
