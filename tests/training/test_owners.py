"""Processes that own the optimizer state of a part of the weights, against one that owns all."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from together import together
from torch.nn.utils import get_total_norm
from toy import write_toy
from train_states import INITIAL, step_batches, train_state

from tformer_cli.config.load import dump_config, load_config
from tformer_cli.config.schema.training import (
    AdamConfig,
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
)
from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.store import Example
from tformer_cli.distributed import SINGLE_PROCESS, World, process_group
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.run_directory import OPTIMIZER_FILE, RunDirectory
from tformer_cli.training.ema import MovingAverage
from tformer_cli.training.optim import build_optimizer, set_learning_rate
from tformer_cli.training.replicas import broadcast_state
from tformer_cli.training.saving import restore_checkpoint, take_checkpoint
from tformer_cli.training.step import NonFiniteStep, TrainState, accumulate_gradients, train_steps

CLIP_NORM = 0.05
LEARNING_RATE = 0.01


def state_of(config: OptimizerConfig, world: World) -> TrainState:
    subject = train_state(LEARNING_RATE, dropout=0.0, clip_norm=CLIP_NORM, save_every=1)
    optimizer = build_optimizer(config, subject.model)
    ema = MovingAverage(subject.model, 0.9)
    return replace(subject, optimizer=optimizer, world=world, ema=ema)


def batches_of(rank: int, world_size: int) -> list[Batch]:
    """Two processes have rows: sums of two numbers and zeros are the same in any order."""
    if rank not in (0, world_size - 1):
        return []
    return [collate([Example(0, [7, 8, rank + 5], [9, 10, 11]), Example(1, [12], [13])])]


def owning_processes(size: int, deed: Callable[[World], None], folder: Path) -> None:
    def run(rank: int) -> None:
        with process_group("cpu") as world:
            deed(world)

    ended = together(size, run, folder)
    assert [process.code for process in ended] == [0] * size, ended


def take_whole_step(state: TrainState, batches: list[Batch], world: World) -> float:
    """Sum the gradients in all processes, and let each move all weights; return their norm."""
    num_tokens = world.all_reduce_sum(sum(batch.num_target_tokens for batch in batches))[0]
    accumulate_gradients(state, batches, int(num_tokens))
    for weight in state.model.parameters():
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
    gradients = [weight.grad for weight in state.model.parameters()]
    world.all_reduce_(gradients)
    norm = get_total_norm(gradients).item()
    for gradient in gradients:
        gradient *= CLIP_NORM / norm
    set_learning_rate(state.optimizer, LEARNING_RATE)
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.progress = replace(state.progress, step=state.step + 1)
    state.ema.update(state.model, state.step)
    return norm


def num_moments(state: TrainState) -> int:
    return sum(x.numel() for slots in state.optimizer.state.values() for x in slots.values())


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("config", [AdamWConfig(weight_decay=0.1), MuonConfig()])
def test_owners_move_the_weights_as_processes_with_all_optimizer_state(tmp_path, size, config):
    def train(world: World) -> None:
        subject, whole = state_of(config, world), state_of(config, SINGLE_PROCESS)
        batches = batches_of(world.rank, size)
        for _ in range(3):
            (report,) = islice(train_steps(subject, step_batches(*batches)), 1)
            norm = take_whole_step(whole, batches, world)
            assert norm > CLIP_NORM
            models = (subject.model, whole.model), (subject.ema.model, whole.ema.model)
            pairs = [zip(*(m.parameters() for m in two), strict=True) for two in models]
            if config == MuonConfig():
                # A product may be rounded by how many there are beside it.
                assert report.grad_norm == pytest.approx(norm, rel=1e-4)
                for one, other in (pair for two in pairs for pair in two):
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
            else:
                assert report.grad_norm == norm
                assert all(torch.equal(*pair) for two in pairs for pair in two)
        assert world.all_reduce_sum(num_moments(subject)) == [num_moments(whole)]
        # A process owns at most one weight, the largest, more than another.
        sizes = [weight.numel() for weight in subject.model.parameters()]
        owned = sum(weight.numel() for weight in subject.optimizer.state)
        assert abs(owned - sum(sizes) / size) <= max(sizes) < sum(sizes) / 4

    owning_processes(size, train, tmp_path)


def test_parts_are_reported_from_the_gradients_of_all_owners(tmp_path):
    def reports(world: World, batches: list[Batch]) -> dict[str, tuple[float, float]]:
        subject = state_of(AdamConfig(), world)
        subject.config = replace(subject.config, log_parameter_norms=True, report_every=1)
        (report,) = islice(train_steps(subject, step_batches(*batches)), 1)
        return dict(report.parts)

    def compare(world: World) -> None:
        (batch,) = batches_of(0, 4)
        expected = reports(SINGLE_PROCESS, [batch])
        assert reports(world, [batch] if world.is_main_process else []) == expected

    owning_processes(4, compare, tmp_path)


def test_a_gradient_that_overflows_in_one_process_is_redone_or_skipped_by_all(tmp_path):
    def train(world: World) -> None:
        subject = state_of(AdamConfig(), world)
        subject.progress = replace(INITIAL, loss_scale=8.0)
        before = [weight.detach().clone() for weight in subject.model.parameters()]
        overflows = 2

        def overflow(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal overflows
            overflows -= 1
            return gradient * torch.inf if overflows >= 0 else gradient

        if world.rank == 1:
            next(subject.model.parameters()).register_hook(overflow)
        steps = train_steps(subject, step_batches(*batches_of(world.rank, 2)))
        assert next(steps).loss_scale.factor == 2.0
        assert subject.step == 1
        after = [weight.detach().clone() for weight in subject.model.parameters()]
        assert not all(map(torch.equal, before, after))
        overflows = 9
        assert isinstance(next(steps), NonFiniteStep)
        assert all(map(torch.equal, after, subject.model.parameters()))
        assert subject.step == 1

    owning_processes(2, train, tmp_path)


def test_where_the_first_process_cannot_write_the_others_end_too(tmp_path, monkeypatch):
    def full_disk(shapes: object, tensors: Iterator[torch.Tensor], file: Path) -> None:
        next(tensors)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save(rank: int) -> None:
        with process_group("cpu") as world:
            state = state_of(AdamConfig(), world)
            next(train_steps(state, step_batches(*batches_of(rank, 2))))
            take_checkpoint(RunDirectory(tmp_path / "run"), state, state.ema.model)

    monkeypatch.setattr("tformer_cli.storage.checkpoint.stream_tensors", full_disk)
    first, second = together(2, save, tmp_path)
    assert (first.code, second.code) == (2, 2)
    assert "cannot be written (No space left on device)" in first.said
    assert second.said == "torchrun: another process has ended; see what it says\n"
    assert RunDirectory(tmp_path / "run").step_checkpoints() == []


def test_processes_meet_before_they_wait_for_tensors_of_a_checkpoint(monkeypatch):
    """NCCL, which has the tensors, waits for minutes only; the first process reads a file."""
    collectives: list[str] = []
    monkeypatch.setattr(World, "_run", lambda world, name, *_, **__: collectives.append(name))
    state = state_of(AdamWConfig(), World(0, 2))
    broadcast_state(state)
    assert collectives[:2] == ["all_reduce", "broadcast"]
    assert collectives.count("all_reduce") == 1
    assert collectives.count("broadcast") == 2 * len(list(state.model.parameters()))


@pytest.mark.parametrize("config", [AdamWConfig(), MuonConfig()])
def test_any_number_of_processes_goes_on_from_a_checkpoint(tmp_path, config):
    """The first process has all rows: sums with zeros are exact, whatever their number."""
    run = RunDirectory(tmp_path / "run")
    write_text(run.config_file, dump_config(load_config(write_toy(tmp_path / "data"))))
    (batch,) = batches_of(0, 4)
    unbroken = state_of(config, SINGLE_PROCESS)

    def go_on(world: World) -> None:
        state = state_of(config, world)
        if world.is_main_process and (checkpoint := run.pointed("last")):
            state.progress = restore_checkpoint(run, state, checkpoint)
        broadcast_state(state)
        assert world.all_reduce_sum(num_moments(state)) == [num_moments(unbroken)]
        steps = train_steps(state, step_batches(*([batch] if world.is_main_process else [])))
        next(steps)
        take_checkpoint(run, state, state.ema.model)

    steps = train_steps(unbroken, step_batches(batch))
    for size in (1, 2, 4, 1):
        owning_processes(size, go_on, tmp_path)
        next(steps)
        moments = load_file(run.pointed("last") / OPTIMIZER_FILE)
        assert run.pointed("last") == run.checkpoint(unbroken.step)
        for name, weight in unbroken.model.named_parameters():
            for key, moment in unbroken.optimizer.state[weight].items():
                if config == MuonConfig():
                    torch.testing.assert_close(moments[f"{name}/{key}"], moment)
                else:
                    assert torch.equal(moments[f"{name}/{key}"], moment)
