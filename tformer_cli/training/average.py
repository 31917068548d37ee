"""The mean of the weights over checkpoints: in a training, and of a trained run."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.device import resolve_precision
from tformer_cli.errors import CheckpointError
from tformer_cli.model.network import Network
from tformer_cli.storage.checkpoint import average_with, load_average, save_checkpoint
from tformer_cli.storage.integrity import trained_weights, verify_trained_weights
from tformer_cli.storage.run_directory import RunDirectory, step_of
from tformer_cli.storage.state import best_checkpoints, load_progress
from tformer_cli.storage.trained_model import TrainedNetwork, load_trained_network
from tformer_cli.training.resume import Log, scheduled_checkpoints
from tformer_cli.training.saving import validated_checkpoints
from tformer_cli.training.step import TrainState
from tformer_cli.training.validation import (
    Validation,
    check_validation,
    is_finished,
    selection_score,
    validate,
    validation_fingerprint,
)


def averaged_model(run: RunDirectory, state: TrainState, log: Log) -> Network | None:
    """Return the average to validate and to translate with, in all processes; None without one.

    It is the moving average, or the mean of the weights over checkpoints (Vaswani et al. 2017,
    section 6.1). The earlier ones are read from the run folder, so a training has them nowhere
    else, and an interruption changes nothing.
    """
    if state.ema is not None:
        return state.ema.model
    if state.config.average_checkpoints is None:
        return None
    average = copy.deepcopy(state.model)
    if state.world.is_main_process:
        # On the CPU: the sums are in float64, which Apple's GPU lacks.
        average_with(_earlier_weights(run, state, log), average.cpu())
        average.to(state.device)
    # It waits longer than NCCL for rank 0, which may read large checkpoints.
    state.world.barrier()
    state.world.broadcast(weight.detach() for weight in average.parameters())
    return average


def _earlier_weights(run: RunDirectory, state: TrainState, log: Log) -> list[Path]:
    """Return the files of the weights to average with those of a state, the newest first."""
    assert state.config.average_checkpoints is not None
    # The checkpoint of this step may be there, saved by an interruption before its validation.
    earlier = [x for x in scheduled_checkpoints(run, state.config) if step_of(x) < state.step]
    without_gap = _without_gap(earlier, state.step, state.config)
    files = []
    for checkpoint in itertools.islice(without_gap, state.config.average_checkpoints - 1):
        problem = verify_trained_weights(checkpoint)
        if problem is None:
            files.append(trained_weights(checkpoint))
        else:
            log(str(replace(problem, remedy="the average is without it")))
    return files


def _without_gap(checkpoints: Sequence[Path], step: int, config: TrainingConfig) -> Iterator[Path]:
    """Yield checkpoints before a step, the newest first, until one that was due is missing.

    One that is kept as the best may be far behind: those between were dropped.
    """
    for checkpoint in reversed(checkpoints):
        if any(map(config.saves_at, range(step_of(checkpoint) + 1, step))):
            return
        yield checkpoint
        step = step_of(checkpoint)


def last_checkpoints(run: RunDirectory) -> list[Path]:
    """Return the last checkpoints of a run, the newest first, without an old one that was best."""
    steps = run.step_checkpoints()
    if not steps:
        return []
    config = load_config(run.config_file).training
    return list(_without_gap(steps, step_of(steps[-1]) + 1, config))


@dataclass(frozen=True, slots=True)
class Average:
    """An averaged checkpoint."""

    checkpoint: Path
    members: tuple[Path, ...]  # the checkpoints averaged
    validation: Validation
    score: float  # that decides which is best: BLEU or negative loss
    best_score: float | None  # of the best checkpoint before; None if none was validated
    run_has_ended: bool  # before it has, its own best may still come
    is_best: bool  # of the run, now


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
    members = _members(run, which, count)
    check_validation(trained.model, trained.tokenizers, config)
    # On the CPU: the sums are in float64, which Apple's GPU lacks.
    load_average(members, trained.model)
    model = trained.model.to(device)
    validation = _validate(model, trained, device)
    score = selection_score(validation, config)
    fingerprint = validation_fingerprint(config)
    best = _best_checkpoint(run)
    best_score = None if best is None else _score_of(run, best, trained, fingerprint, device)
    has_ended = is_finished(load_progress(run.step_checkpoints()[-1]), config.training)
    is_best = has_ended and (best_score is None or score > best_score)
    newest = max(members, key=step_of)
    checkpoint = run.checkpoints / f"average-{which}-{count}"
    if best == checkpoint and not is_best and score != best_score:
        # `best` stays as it is: an average of other checkpoints takes another name.
        checkpoint = checkpoint.with_name(f"{checkpoint.name}-{newest.name}")
    progress = replace(load_progress(newest), score=score, validation_fingerprint=fingerprint)
    save_checkpoint(checkpoint, model, None, progress)
    if is_best:
        run.point("best", checkpoint)
    return Average(checkpoint, tuple(members), validation, score, best_score, has_ended, is_best)


def _members(run: RunDirectory, which: Literal["last", "best"], count: int) -> list[Path]:
    """Return the last checkpoints of a run, the newest first, or its best ones, the best first."""
    steps = run.step_checkpoints()
    if not steps:
        what = "holds an exported model, which has no checkpoints"
        raise CheckpointError(str(run.path), what, remedy="name the run that was exported")
    candidates = best_checkpoints(steps) if which == "best" else steps[::-1]
    if len(candidates) < count:
        what, key = "has too few checkpoints", "keep_checkpoints"
        if which == "best":
            what, key = "has too few validated checkpoints", "keep_best"
        fewer = "ask for fewer, or " if len(candidates) > 1 else ""
        raise CheckpointError(
            str(run.path),
            what,
            got=f"{len(candidates)} of {count}",
            remedy=f"{fewer}train with training.{key}: {count}",
        )
    return candidates[:count]


def _best_checkpoint(run: RunDirectory) -> Path | None:
    """Return what `best` points to; if that was removed by hand, the best that is left."""
    best = run.pointed("best")
    if best is not None and best.is_dir():
        return best
    return next(iter(validated_checkpoints(run)), None)


def _score_of(
    run: RunDirectory,
    checkpoint: Path,
    trained: TrainedNetwork,
    fingerprint: str,
    device: torch.device,
) -> float | None:
    """Return the score of a checkpoint in the validation with a fingerprint."""
    progress = load_progress(checkpoint)
    if progress.validation_fingerprint == fingerprint:
        return progress.score
    # The text or the metric has changed, and scores of two kinds do not compare.
    model = load_trained_network(run, checkpoint.name).model.to(device)
    return selection_score(_validate(model, trained, device), trained.config)


def _validate(model: Network, trained: TrainedNetwork, device: torch.device) -> Validation:
    """Validate a model as the training of another of its kind does."""
    return validate(
        model,
        trained.tokenizers,
        trained.config,
        device,
        resolve_precision(trained.config.training.precision, device),
        max_source_sentences=trained.max_source_sentences,
    )
