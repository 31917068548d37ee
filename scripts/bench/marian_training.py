"""Training of transformers' Marian, with the batches, optimizer and seeds of tformer's loop."""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from baseline_marian import loss_sum
from harness import log
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tformer_cli.config.load import as_plain
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.training import AdamConfig, AdamWConfig, MuonConfig
from tformer_cli.corpus.batch import Batch, DataPosition, epoch_plans, training_micro_batches
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import autocast, derive_seed
from tformer_cli.errors import CheckpointError, Interrupted, TrainingError, UsageError
from tformer_cli.storage.atomic import remove_directory, storage_errors, write_text
from tformer_cli.storage.checkpoint import load_optimizer, load_weights, save_checkpoint
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress, load_progress
from tformer_cli.training.optim import set_learning_rate
from tformer_cli.training.resume import locked
from tformer_cli.training.shutdown import GracefulShutdown
from tformer_cli.training.step import TrainState
from tformer_cli.training.validation import is_finished

if TYPE_CHECKING:
    from transformers import MarianMTModel

OPTIMIZERS = {"adam": AdamConfig, "adamw": AdamWConfig, "muon": MuonConfig}
# Names the last checkpoint of a folder. Not `last`: the folder is no run of tformer.
POINTER = "marian"
SETTINGS_FILE = "marian.json"


def with_optimizer(
    config: Config,
    kind: str | None,
    learning_rate: float | None,
    warmup_steps: int | None = None,
) -> Config:
    """Return a config with another optimizer, peak learning rate or warm-up, where given.

    A `kind` other than the config's has the defaults of the schema.
    """
    optimizer, schedule = config.training.optimizer, config.training.schedule
    if kind is not None and kind != optimizer.kind:
        optimizer = OPTIMIZERS[kind](learning_rate=optimizer.learning_rate)
    if learning_rate is not None:
        optimizer = replace(optimizer, learning_rate=learning_rate)
    if warmup_steps is not None:
        schedule = replace(schedule, warmup_steps=warmup_steps)
    training = replace(config.training, optimizer=optimizer, schedule=schedule)
    return replace(config, training=training)


def train_step(state: TrainState, micro_batches: list[Batch], step: int) -> tuple[float, float]:
    """Let Marian take an optimizer step as our loop would; return the loss and gradient norm."""
    marian, config = state.model, state.config
    marian.train()
    # Dropout is a function of the step, as in our loop, so that resuming is exact.
    torch.manual_seed(derive_seed(state.seed, "dropout", step))
    num_tokens = sum(batch.num_target_tokens for batch in micro_batches)
    loss = 0.0
    for batch in micro_batches:
        with autocast(state.device, state.precision):
            total = loss_sum(marian, batch.to(state.device), config.label_smoothing)
        part = total / num_tokens
        part.backward()
        loss += part.item()
    max_norm = math.inf if config.clip_norm is None else config.clip_norm
    grad_norm = clip_grad_norm_(marian.parameters(), max_norm).item()
    set_learning_rate(state.optimizer, state.scheduler(step))
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return loss, grad_norm


def train_marian(
    marian: "MarianMTModel",
    config: Config,
    store: TokenStore,
    folder: RunDirectory,
    *,
    initial: TrainingProgress,
    steps: int,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    validate: Callable[[], float] | None = None,
) -> TrainingProgress:
    """Train up to a number of steps, from the checkpoint in the folder if it has one.

    The schedule is the config's, whatever `steps` is. `validate` returns a score, the higher the
    better; it is called when tformer would validate, and decides about early stopping.

    Raises:
        CheckpointError: the folder holds another Marian.
        UsageError: it has taken more steps already.
        TrainingError: the loss is not finite, or another process trains there.
        Interrupted: SIGINT or SIGTERM came; a checkpoint is saved.
    """
    training = config.training
    state = TrainState.of(marian, training, device=device, precision=precision, seed=config.seed)
    with storage_errors(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder), GracefulShutdown(str(folder.path)) as shutdown:
        progress = _resumed(state, config, folder, initial)
        if progress.step > steps:
            raise UsageError(
                "--steps",
                f"{folder.path} has taken {progress.step} steps already",
                got=str(steps),
                remedy="name another --folder",
            )
        batches = training_micro_batches(
            store,
            epoch_plans(store, batch_tokens=training.batch_tokens, seed=config.seed),
            accumulate=training.gradient_accumulation_steps,
            data_position=DataPosition(*progress.data_position),
        )
        while progress.step < steps and not (validate and is_finished(progress, training)):
            progress, loss = _after_step(state, batches, progress, folder)
            if progress.step % training.report_every == 0 or progress.step == steps:
                _log_step(progress, steps, loss)
            if validate and training.validates_at(progress.step):
                progress = _validated(progress, validate())
            shutdown.poll()
            is_saving = progress.score is not None or progress.step % training.save_every == 0
            if is_saving or progress.step == steps or shutdown.signal is not None:
                _save(state, folder, progress)
            if shutdown.signal is not None:
                raise Interrupted(
                    str(folder.path),
                    f"interrupted; saved at step {progress.step}",
                    signal=shutdown.signal,
                    remedy="re-run the command to resume",
                )
    return progress


def _after_step(
    state: TrainState,
    batches: Iterator[tuple[list[Batch], DataPosition]],
    progress: TrainingProgress,
    folder: RunDirectory,
) -> tuple[TrainingProgress, float]:
    started, step = time.perf_counter(), progress.step + 1
    micro_batches, position = next(batches)
    loss, grad_norm = train_step(state, micro_batches, step)
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise TrainingError(
            f"step {step} of Marian",
            "the training diverged",
            got=f"loss {loss}, gradient norm {grad_norm}",
            remedy=f"remove {folder.path}, and give a lower --learning-rate",
        )
    num_tokens = sum(batch.num_target_tokens for batch in micro_batches)
    after = replace(
        progress,
        score=None,
        step=step,
        data_position=(position.epoch, position.batch),
        num_tokens=progress.num_tokens + num_tokens,
        seconds=progress.seconds + time.perf_counter() - started,
    )
    return after, loss


def _validated(progress: TrainingProgress, score: float) -> TrainingProgress:
    """Return the progress with a score; of equal scores the later one is the best, as in ours."""
    is_best = progress.best_score is None or score >= progress.best_score
    log(f"marian valid {progress.step}  {score:.3f}{'  (best so far)' if is_best else ''}")
    if is_best:
        best = {"best_step": progress.step, "best_score": score, "num_bad_validations": 0}
        return replace(progress, score=score, **best)
    return replace(progress, score=score, num_bad_validations=progress.num_bad_validations + 1)


def _resumed(
    state: TrainState, config: Config, folder: RunDirectory, initial: TrainingProgress
) -> TrainingProgress:
    """Load the checkpoint of a folder, or make the folder ready for the first one."""
    checkpoint, settings_file = folder.pointed(POINTER), folder.path / SETTINGS_FILE
    settings = _settings(state.model, config, initial)
    if checkpoint is None:
        write_text(settings_file, json.dumps(settings, indent=2) + "\n")
        return initial
    before = json.loads(settings_file.read_text(encoding="utf-8"))
    differing = [name for name, setting in settings.items() if before[name] != setting]
    if differing:
        raise CheckpointError(
            str(folder.path),
            "holds a Marian that was trained otherwise",
            got=f"another {differing[0]}",
            remedy="remove it, or name another --folder",
        )
    load_weights(checkpoint, state.model)
    load_optimizer(checkpoint, state.model, state.optimizer)
    return replace(load_progress(checkpoint), environment=initial.environment)


def _settings(marian: nn.Module, config: Config, initial: TrainingProgress) -> dict[str, Any]:
    """Return what determines the trajectory, as JSON reads it back."""
    plain = as_plain(config)
    settings = {
        "data": initial.data_fingerprint,
        "seed": plain["seed"],
        "model": marian.config.to_dict(),
        "training": plain["training"],
    }
    return json.loads(json.dumps(settings))


def _save(state: TrainState, folder: RunDirectory, progress: TrainingProgress) -> None:
    """Save a checkpoint; of the earlier ones those with a score stay."""
    before, checkpoint = folder.pointed(POINTER), folder.checkpoint(progress.step)
    save_checkpoint(checkpoint, state.model, state.optimizer, progress)
    folder.point(POINTER, checkpoint)
    if before is not None and before != checkpoint and load_progress(before).score is None:
        remove_directory(before)


def _log_step(progress: TrainingProgress, steps: int, loss: float) -> None:
    speed = progress.num_tokens / progress.seconds
    left = (steps - progress.step) * progress.seconds / progress.step / 60
    log(
        f"marian step {progress.step}/{steps}  loss {loss:.3f}  {speed:,.0f} tok/s  "
        f"{left:.1f} min left"
    )
