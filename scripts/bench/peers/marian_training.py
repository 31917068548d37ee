"""A plain training loop for Marian that goes on where it was interrupted."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from peers.marian import loss_sum
from torch.nn.utils import clip_grad_norm_

from tformer_cli.config.load import as_plain
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.training import AdamConfig, AdamWConfig, MuonConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.pipeline import epoch_plans, training_micro_batches
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import autocast, derive_seed
from tformer_cli.errors import CheckpointError, Interrupted, TrainingError, UsageError
from tformer_cli.storage.atomic import remove_directory, storage_errors, write_text
from tformer_cli.storage.checkpoint import load_optimizer, load_weights, save_checkpoint
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_state
from tformer_cli.training.optim import set_learning_rate
from tformer_cli.training.resume import is_finished, locked
from tformer_cli.training.shutdown import GracefulShutdown
from tformer_cli.training.step import TrainState

if TYPE_CHECKING:
    from transformers import MarianMTModel

# Names the checkpoint in its folder. It is not called `last`, so that nothing takes the folder for
# a run of tformer.
POINTER = "marian"
SETTINGS_FILE = "marian.json"
OPTIMIZERS = {"adam": AdamConfig, "adamw": AdamWConfig, "muon": MuonConfig}


def train_marian(
    marian: "MarianMTModel",
    config: Config,
    store: TokenStore,
    folder: RunDirectory,
    *,
    begin: TrainingProgress,
    steps: int,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    validate: Callable[[], float] | None = None,
) -> TrainingProgress:
    """Take optimiser steps until there are `steps`, from the checkpoint in `folder` if it has one.

    Args:
        marian: what learns.
        config: of the run, with Marian's optimiser.
        store: the training examples.
        folder: where the checkpoints are: the last one, and each that was validated.
        begin: the state before the first step.
        steps: where to stop; the schedule is that of the run all the same.
        device: where to train.
        precision: number format of matrix products.
        validate: returns a score of Marian as it is, the higher the better. It is asked when a run
            would validate, and patience counts by it; None validates nothing.

    Returns:
        Where Marian stands.

    Raises:
        CheckpointError: the folder holds another Marian.
        UsageError: it has taken more steps already.
        TrainingError: the loss is no longer finite, or another process trains there.
        Interrupted: SIGINT or SIGTERM came; Marian is saved and can go on.
    """
    training = config.training
    train_state = TrainState.of(
        marian, training, device=device, precision=precision, seed=config.seed
    )
    with storage_errors(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder), GracefulShutdown(str(folder.path)) as shutdown:
        state = _gone_on(marian, train_state.optimizer, config, folder, begin)
        if state.step > steps:
            raise UsageError(
                "--steps",
                f"{folder.path} has taken {state.step} steps already",
                got=str(steps),
                remedy="name another --folder",
            )
        groups = training_micro_batches(
            store,
            epoch_plans(store, batch_tokens=training.batch_tokens, seed=config.seed),
            accumulate=training.gradient_accumulation_steps,
            data_position=DataPosition(*state.data_position),
        )
        while state.step < steps and not (validate is not None and is_finished(state, training)):
            state, loss = _after_step(train_state, groups, state, folder)
            if state.step % training.report_every == 0 or state.step == steps:
                _report(state, steps, loss)
            if validate is not None and training.validates_at(state.step):
                state = _judged(state, validate())
                _report_score(state)
            shutdown.poll()
            is_saving = state.score is not None or state.step % training.save_every == 0
            if is_saving or state.step == steps or shutdown.signal is not None:
                _save(marian, train_state.optimizer, folder, state)
            if shutdown.signal is not None:
                raise Interrupted(
                    str(folder.path),
                    f"interrupted; saved at step {state.step}",
                    signal=shutdown.signal,
                    remedy="re-run the command to resume",
                )
    return state


def with_optimizer(
    config: Config,
    kind: str | None,
    learning_rate: float | None,
    warmup_steps: int | None = None,
) -> Config:
    """Return a config with another optimiser, peak of the learning rate or warm-up, if given.

    Args:
        config: of the run.
        kind: key of OPTIMIZERS; another one than the run's has the defaults of the schema.
        learning_rate: the peak.
        warmup_steps: of linear rise to it.
    """
    optimizer = config.training.optimizer
    if kind is not None and kind != optimizer.kind:
        optimizer = OPTIMIZERS[kind](learning_rate=optimizer.learning_rate)
    if learning_rate is not None:
        optimizer = replace(optimizer, learning_rate=learning_rate)
    schedule = config.training.schedule
    if warmup_steps is not None:
        schedule = replace(schedule, warmup_steps=warmup_steps)
    training = replace(config.training, optimizer=optimizer, schedule=schedule)
    return replace(config, training=training)


class Taken(NamedTuple):
    """What one optimiser step did.

    Attributes:
        loss: smoothed cross-entropy a target token before the step, in nats.
        grad_norm: norm of the gradient before clipping.
        num_tokens: target tokens, `</s>` included, padding not.
    """

    loss: float
    grad_norm: float
    num_tokens: int


def take_step(train_state: TrainState, group: list[Batch], step: int) -> Taken:
    """Let Marian take an optimiser step, as our loop would.

    Args:
        train_state: its model is Marian.
        group: the micro-batches of the step.
        step: its number, counted from 1.
    """
    marian, optimizer, config = train_state.model, train_state.optimizer, train_state.config
    marian.train()
    # As in our loop, dropout is a function of the step, so going on is exact.
    torch.manual_seed(derive_seed(train_state.seed, "dropout", step))
    num_tokens = sum(batch.num_target_tokens for batch in group)
    loss = 0.0
    for batch in group:
        with autocast(train_state.device, train_state.precision):
            total = loss_sum(marian, batch.to(train_state.device), config.label_smoothing)
        part = total / num_tokens
        part.backward()
        loss += part.item()
    max_norm = math.inf if config.clip_norm is None else config.clip_norm
    grad_norm = clip_grad_norm_(marian.parameters(), max_norm).item()
    set_learning_rate(optimizer, train_state.scheduler(step))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Taken(loss, grad_norm, num_tokens)


def _after_step(
    train_state: TrainState,
    groups: Iterator[tuple[list[Batch], DataPosition]],
    state: TrainingProgress,
    folder: RunDirectory,
) -> tuple[TrainingProgress, float]:
    """Take an optimiser step; return the state after it and the loss before it."""
    started = time.perf_counter()
    group, position = next(groups)
    step = state.step + 1
    taken = take_step(train_state, group, step)
    if not (math.isfinite(taken.loss) and math.isfinite(taken.grad_norm)):
        raise TrainingError(
            f"step {step} of Marian",
            "the training diverged",
            got=f"loss {taken.loss}, gradient norm {taken.grad_norm}",
            remedy=f"remove {folder.path}, and give a lower --learning-rate",
        )
    after = replace(
        state,
        score=None,
        step=step,
        data_position=(position.epoch, position.batch),
        num_tokens=state.num_tokens + taken.num_tokens,
        seconds=state.seconds + time.perf_counter() - started,
    )
    return after, taken.loss


def _judged(state: TrainingProgress, score: float) -> TrainingProgress:
    """Return a state with its score; of equal ones the later is the best, as in our runs."""
    if state.best_score is None or score >= state.best_score:
        return replace(
            state, score=score, best_step=state.step, best_score=score, num_bad_validations=0
        )
    return replace(state, score=score, num_bad_validations=state.num_bad_validations + 1)


def _gone_on(
    marian: "MarianMTModel",
    optimizer: torch.optim.Optimizer,
    config: Config,
    folder: RunDirectory,
    begin: TrainingProgress,
) -> TrainingProgress:
    """Take up the checkpoint of a folder, or else make the folder ready for the first one."""
    checkpoint, settings_file = folder.pointed(POINTER), folder.path / SETTINGS_FILE
    settings = _settings(marian, config, begin)
    if checkpoint is None:
        write_text(settings_file, json.dumps(settings, indent=2) + "\n")
        return begin
    before = json.loads(settings_file.read_text(encoding="utf-8"))
    differing = [name for name, setting in settings.items() if before[name] != setting]
    if differing:
        raise CheckpointError(
            str(folder.path),
            "holds a Marian that was trained otherwise",
            got=f"another {differing[0]}",
            remedy="remove it, or name another --folder",
        )
    load_weights(checkpoint, marian)
    load_optimizer(checkpoint, marian, optimizer)
    return replace(load_state(checkpoint), environment=begin.environment)


def _settings(marian: "MarianMTModel", config: Config, begin: TrainingProgress) -> dict[str, Any]:
    """Return what decides the course of the training, as JSON reads it back."""
    plain = as_plain(config)
    settings = {
        "data": begin.data_fingerprint,
        "seed": plain["seed"],
        "model": marian.config.to_dict(),
        "training": plain["training"],
    }
    return json.loads(json.dumps(settings))


def _save(
    marian: "MarianMTModel",
    optimizer: torch.optim.Optimizer,
    folder: RunDirectory,
    state: TrainingProgress,
) -> None:
    before, checkpoint = folder.pointed(POINTER), folder.checkpoint(state.step)
    save_checkpoint(checkpoint, marian, optimizer, state)
    folder.point(POINTER, checkpoint)
    if before is not None and before != checkpoint and load_state(before).score is None:
        remove_directory(before)


def _report(state: TrainingProgress, steps: int, loss: float) -> None:
    speed = state.num_tokens / state.seconds
    left = (steps - state.step) * state.seconds / state.step / 60
    print(
        f"marian step {state.step}/{steps}  loss {loss:.3f}  {speed:,.0f} tok/s  "
        f"{left:.1f} min left",
        file=sys.stderr,
        flush=True,
    )


def _report_score(state: TrainingProgress) -> None:
    best = "  (best so far)" if state.best_step == state.step else ""
    print(f"marian valid {state.step}  {state.score:.3f}{best}", file=sys.stderr, flush=True)
