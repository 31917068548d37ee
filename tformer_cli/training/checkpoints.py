"""Checkpoints of a training: saved, chosen to resume from or roll back to, dropped, averaged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.device import resolve_precision
from tformer_cli.errors import CheckpointError, Problem
from tformer_cli.model.network import Network
from tformer_cli.storage.atomic import recover_interrupted_writes, remove_directory
from tformer_cli.storage.checkpoint import (
    load_average,
    load_optimizer,
    load_weights,
    save_checkpoint,
    verify_checksums,
)
from tformer_cli.storage.run_directory import RAW_MODEL_FILE, STATE_FILE, RunDirectory, step_of
from tformer_cli.storage.state import TrainingProgress, best_checkpoints, load_progress
from tformer_cli.storage.trained_model import load_trained_network
from tformer_cli.training.resume import accepted_changes, trajectory_settings
from tformer_cli.training.step import TrainState
from tformer_cli.training.validation import (
    Validation,
    check_validation,
    is_finished,
    selection_score,
    validate,
)

Log = Callable[[str], object]


def take_checkpoint(run: RunDirectory, state: TrainState) -> None:
    """Save a checkpoint, point `last` and perhaps `best` to it, and drop old ones.

    The first process alone writes.
    """
    if not state.world.is_main_process:
        return
    progress = replace(state.progress, is_scheduled=state.config.saves_at(state.step))
    checkpoint = run.checkpoint(state.step)
    average = None if state.average is None else state.average.model
    save_checkpoint(checkpoint, state.model, state.optimizer, progress, average=average)
    if progress.best_step == progress.step and not _is_below_average(run, progress):
        run.point("best", checkpoint)
    run.point("last", checkpoint)
    _drop_old(run, state.config)


def restore_checkpoint(run: RunDirectory, state: TrainState, checkpoint: Path) -> TrainingProgress:
    """Load weights, average and optimizer, and remove later checkpoints, whose steps come again.

    The progress of `state` stays; that of the checkpoint is returned.
    """
    progress = load_progress(checkpoint)
    if state.average is None:
        load_weights(checkpoint, state.model)
    else:
        load_weights(checkpoint, state.average.model)
        load_weights(checkpoint, state.model, RAW_MODEL_FILE)
    load_optimizer(checkpoint, state.model, state.optimizer)
    steps = run.step_checkpoints()
    for later in steps[steps.index(checkpoint) + 1 :]:
        remove_directory(later)
    # A newer pointer would make this the run trained last.
    if run.pointed("last") != checkpoint:
        run.point("last", checkpoint)
    _restore_best(run, progress)
    # A kill may have come before the last save had dropped them.
    _drop_old(run, state.config)
    return progress


def restart(state: TrainState, model: Network) -> None:
    """Give a state the weights of a model that has taken no step."""
    state.model.load_state_dict(model.state_dict())
    if state.average is not None:
        state.average.model.load_state_dict(model.state_dict())
    state.optimizer.state.clear()


def _restore_best(run: RunDirectory, progress: TrainingProgress) -> None:
    """Point `best` where it pointed at that progress, or nowhere if that checkpoint is gone."""
    if _best_average(run) is not None:
        return
    best = None if progress.best_step is None else run.checkpoint(progress.best_step)
    if best is not None and best.is_dir():
        run.point("best", best)
    elif run.pointed("best") is not None:
        (run.path / "best").unlink()


def _best_average(run: RunDirectory) -> Path | None:
    """Return the averaged checkpoint that `best` points to, if it points to one."""
    best = run.pointed("best")
    is_average = best is not None and best.is_dir() and not best.name.startswith("step-")
    return best if is_average else None


def _is_below_average(run: RunDirectory, progress: TrainingProgress) -> bool:
    """Return whether `best` is an average with a higher score in the same validation."""
    average = _best_average(run)
    if average is None or verify_checksums(average, [STATE_FILE]) is not None:
        return False
    other = load_progress(average)
    if (
        other.validation_fingerprint != progress.validation_fingerprint
        or other.score is None
        or progress.score is None
    ):
        return False
    return other.score > progress.score


def _drop_old(run: RunDirectory, config: TrainingConfig) -> None:
    """Keep the newest and the best checkpoints; one saved by an interruption while it is last."""
    steps = run.step_checkpoints()
    best = best_checkpoints(
        [step for step in steps if verify_checksums(step, [STATE_FILE]) is None]
    )
    newest = _scheduled(steps, config)[-config.keep_checkpoints :]
    kept = [*newest, run.pointed("last"), run.pointed("best"), *best[: config.keep_best]]
    for checkpoint in steps:
        if checkpoint not in kept:
            remove_directory(checkpoint)
    recover_interrupted_writes(run.checkpoints)


def _scheduled(checkpoints: Sequence[Path], config: TrainingConfig) -> list[Path]:
    """Return the checkpoints due by this config or by that of their time, whatever interrupted."""
    return [
        checkpoint
        for checkpoint in checkpoints
        if config.saves_at(step_of(checkpoint)) or _was_scheduled(checkpoint)
    ]


def _was_scheduled(checkpoint: Path) -> bool:
    return (
        verify_checksums(checkpoint, [STATE_FILE]) is None
        and load_progress(checkpoint).is_scheduled
    )


def last_checkpoint(run: RunDirectory, log: Log) -> Path | None:
    """Return the checkpoint to resume from: the last one, or the newest intact one before it.

    It is None in a run without checkpoints; `log` is called with what is wrong with newer ones.
    """
    last, steps = run.pointed("last"), run.step_checkpoints()
    if last in steps:
        return _newest_intact(run, steps[: steps.index(last) + 1], log)
    if last is None and not steps:
        return None
    return _newest_intact(run, [*steps, last or run.path / "last"], log)


def resumable_checkpoint(run: RunDirectory, config: Config, log: Log) -> Path | None:
    """Return the last checkpoint, if there is one, for a config that may resume its training."""
    checkpoint = last_checkpoint(run, log)
    if checkpoint is not None:
        for change in accepted_changes(run, load_config(run.config_file), config):
            log(f"{run.path}: {change}")
    return checkpoint


def checkpoint_before(
    run: RunDirectory, step: int, config: TrainingConfig, log: Log
) -> Path | None:
    """Return the checkpoint to roll back to when no step beyond `step` can be taken, if any.

    It is one of an uninterrupted training. One at that very step may hold diverged weights already,
    so it is the last choice.
    """
    steps = _scheduled(run.step_checkpoints(), config)
    if len(steps) > 1 and steps[-1] == run.checkpoint(step):
        steps = [steps[-1], *steps[:-1]]
    return _newest_intact(run, steps, log) if steps else None


def _newest_intact(run: RunDirectory, checkpoints: Sequence[Path], log: Log) -> Path:
    """Return the last of some checkpoints that is intact and of this training."""
    settings = trajectory_settings(load_config(run.config_file))
    problems: list[Problem] = []
    for checkpoint in reversed(checkpoints):
        problem = verify_checksums(checkpoint) or _mismatch(checkpoint, settings)
        if problem is None:
            for newer in problems:
                log(str(replace(newer, remedy=f"resuming from {checkpoint.name}")))
            return checkpoint
        problems.append(problem)
    raise CheckpointError(
        str(run.path),
        "has no intact checkpoint",
        got="; ".join(map(str, problems)),
        remedy="restore one, or start over with `fresh=True`",
    )


def _mismatch(checkpoint: Path, settings: Mapping[str, str]) -> Problem | None:
    """Return what shows that an intact checkpoint is of another training, or None.

    An older program may have saved fewer settings.
    """
    progress = load_progress(checkpoint)
    saved = {"step": str(progress.step), **progress.settings}
    expected = {"step": str(step_of(checkpoint)), **settings}
    for key, value in saved.items():
        if expected.get(key, value) != value:
            return Problem(str(checkpoint), "belongs to another training", got=f"{key} {value}")
    return None


@dataclass(frozen=True, slots=True)
class Average:
    """An averaged checkpoint.

    Attributes:
        members: the checkpoints averaged.
        score: the selection score, BLEU or negative loss.
        best_score: of the best checkpoint before; None if none was validated.
        run_has_ended: before it has, its own best may still come.
        is_best: whether it is the run's best checkpoint now.
    """

    checkpoint: Path
    members: tuple[Path, ...]
    validation: Validation
    score: float
    best_score: float | None
    run_has_ended: bool
    is_best: bool


def average_checkpoints(
    run: RunDirectory, which: Literal["last", "best"], count: int, *, device: torch.device
) -> Average:
    """Average the last or the best checkpoints of a run, and point `best` to a better average.

    While the run is not finished `best` stays as it is.

    Raises:
        CheckpointError: the run has fewer checkpoints, or one of them is damaged.
        DataError: the validation text cannot be used.
    """
    trained = load_trained_network(run, "last")
    config = trained.config
    steps = run.step_checkpoints()
    candidates = best_checkpoints(steps) if which == "best" else steps[::-1]
    if len(candidates) < count:
        key = "keep_best" if which == "best" else "keep_checkpoints"
        raise CheckpointError(
            str(run.path),
            f"has only {len(candidates)} {'validated ' if which == 'best' else ''}checkpoints",
            got=f"--{which} {count}",
            remedy=f"ask for fewer, or train with training.{key}: {count}",
        )
    members = candidates[:count]
    check_validation(trained.model, trained.tokenizers, config)
    # On the CPU: the sums are in float64, which Apple's GPU lacks.
    load_average(members, trained.model)
    model = trained.model.to(device)
    validation = validate(
        model,
        trained.tokenizers,
        config,
        device,
        resolve_precision(config.training.precision, device),
        max_source_sentences=trained.max_source_sentences,
    )
    score = selection_score(validation, config)
    best = run.pointed("best")
    best_score = None if best is None else load_progress(best).score
    newest = load_progress(max(members, key=step_of))
    checkpoint = run.checkpoints / f"average-{which}-{count}"
    save_checkpoint(checkpoint, model, None, replace(newest, score=score))
    has_ended = is_finished(load_progress(steps[-1]), config.training)
    is_best = has_ended and (best_score is None or score > best_score)
    if is_best:
        run.point("best", checkpoint)
    return Average(checkpoint, tuple(members), validation, score, best_score, has_ended, is_best)
