"""Checkpoints of a run: saved, restored in all its processes, dropped, and averaged.

Rank 0 alone reads and writes them; it broadcasts its state, and all check that they agree. The
optimizer state of a weight is kept by the process that owns it.
"""

import copy
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import leaves
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.device import resolve_precision
from tformer_cli.distributed import World
from tformer_cli.errors import CheckpointError, TrainingError
from tformer_cli.model.network import Network
from tformer_cli.storage.atomic import recover_interrupted_writes, remove_directory
from tformer_cli.storage.checkpoint import (
    average_with,
    load_average,
    load_optimizer,
    load_weights,
    optimizer_moments,
    save_checkpoint,
)
from tformer_cli.storage.run_directory import STATE_FILE, RunDirectory, step_of
from tformer_cli.storage.state import (
    TrainingProgress,
    best_checkpoints,
    load_progress,
    trained_weights,
    verify_checksums,
    verify_trained_weights,
)
from tformer_cli.storage.trained_model import TrainedNetwork, load_trained_network
from tformer_cli.training.resume import Log, scheduled_checkpoints
from tformer_cli.training.step import TrainState
from tformer_cli.training.validation import (
    Validation,
    check_validation,
    is_finished,
    selection_score,
    validate,
    validation_fingerprint,
)

# Of a hash, in messages.
HASH_DIGITS = 16


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


def take_checkpoint(run: RunDirectory, state: TrainState, average: Network | None = None) -> None:
    """Save a checkpoint, point `last` and perhaps `best` to it, and drop old ones.

    The first process alone writes. `average` is one of the weights, to translate with.
    """
    progress = replace(state.progress, is_scheduled=state.config.saves_at(state.step))
    checkpoint = run.checkpoint(state.step)
    save_checkpoint(
        checkpoint, state.model, state.optimizer, progress, average=average, world=state.world
    )
    if not state.world.is_main_process:
        return
    if progress.best_step == progress.step and not _is_below_average(run, progress):
        run.point("best", checkpoint)
    run.point("last", checkpoint)
    _drop_old(run, state.config)


def restore_checkpoint(run: RunDirectory, state: TrainState, checkpoint: Path) -> TrainingProgress:
    """Load weights, EMA and optimizer, and remove later checkpoints, whose steps come again.

    The progress of `state` stays; that of the checkpoint is returned. If its best checkpoint is
    gone, the best of those that are left counts.
    """
    progress = load_progress(checkpoint)
    load_weights(checkpoint, state.model, trained_weights(checkpoint).name)
    if state.ema is not None:
        load_weights(checkpoint, state.ema.model)
    state.start_phase(progress.step)
    load_optimizer(checkpoint, state.model, state.optimizer)
    steps = run.step_checkpoints()
    for later in steps[steps.index(checkpoint) + 1 :]:
        remove_directory(later)
    # A newer pointer would make this the run trained last.
    if run.pointed("last") != checkpoint:
        run.point("last", checkpoint)
    progress = _restore_best(run, progress)
    # A kill may have come before the last save had dropped them.
    _drop_old(run, state.config)
    return progress


def restart(state: TrainState, model: Network) -> None:
    """Give a state the weights of a model that has taken no step."""
    state.model.load_state_dict(model.state_dict())
    if state.ema is not None:
        state.ema.model.load_state_dict(model.state_dict())
    state.start_phase(1)
    state.optimizer.state.clear()


def _restore_best(run: RunDirectory, progress: TrainingProgress) -> TrainingProgress:
    """Point `best` where it pointed at that progress, or to the best checkpoint that is left."""
    best = None if progress.best_step is None else run.checkpoint(progress.best_step)
    if best is not None and not best.is_dir():
        # Dropped for a better one whose steps come again, or removed by hand.
        best = next(iter(_validated(run)), None)
        left = None if best is None else load_progress(best)
        progress = replace(
            progress,
            best_step=None if left is None else left.step,
            best_score=None if left is None else left.score,
        )
    if _best_average(run) is not None:
        return progress
    if best is not None:
        run.point("best", best)
    elif run.pointed("best") is not None:
        (run.path / "best").unlink()
    return progress


def _validated(run: RunDirectory) -> list[Path]:
    """Return the validated checkpoints of a run with an intact state, the best first."""
    steps = run.step_checkpoints()
    return best_checkpoints([x for x in steps if verify_checksums(x, [STATE_FILE]) is None])


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
    if other.validation_fingerprint != progress.validation_fingerprint:
        return False
    return other.score is not None and progress.score is not None and other.score > progress.score


def _drop_old(run: RunDirectory, config: TrainingConfig) -> None:
    """Keep the newest and the best checkpoints; one saved by an interruption while it is last."""
    newest = scheduled_checkpoints(run, config)[-config.keep_checkpoints :]
    best = _validated(run)[: config.keep_best]
    kept = [*newest, run.pointed("last"), run.pointed("best"), *best]
    for checkpoint in run.step_checkpoints():
        if checkpoint not in kept:
            remove_directory(checkpoint)
    recover_interrupted_writes(run.checkpoints)


def broadcast_state(state: TrainState) -> None:
    """Give every process the weights, EMA and progress of rank 0, and the moments that it owns."""
    world = state.world
    # It waits longer than NCCL for rank 0, which may read a large checkpoint.
    world.barrier()
    models = [state.model] if state.ema is None else [state.model, state.ema.model]
    for model in models:
        world.broadcast(weight.detach() for weight in model.parameters())
    state.progress = TrainingProgress.from_dict(world.broadcast_object(asdict(state.progress)))
    state.start_phase(state.step)
    optimizer = state.optimizer
    moments = optimizer_moments(state.model, optimizer, world) if state.step > 0 else []
    optimizer.state.clear()
    for moment in moments:
        tensor = moment.broadcast(world, 0)
        if moment.owner == world.rank:
            optimizer.state[moment.parameter][moment.key] = tensor


def check_replicas(state: TrainState) -> None:
    """Refuse processes that are at another step or have other weights than rank 0."""
    if state.world.size == 1:
        return
    facts = {
        "the step": str(state.step),
        "the epoch": str(state.data_position.epoch),
        "the batch": str(state.data_position.batch),
        "the checksum of the weights": checksum(state.model),
    }
    remedy = (
        "give all machines the same program and kind of processor, and re-run the command to "
        "resume from the last checkpoint"
    )
    _check_agreement(state.world, facts, remedy)


def check_inputs_agree(world: World, config: Config, initial: TrainingProgress) -> None:
    """Refuse processes that have another config or text than rank 0.

    Paths may differ from machine to machine; the hashes of text are compared.
    """
    facts = {
        key: str(value)
        for key, value in leaves(config)
        if not key.startswith("data.") and key != "training.init_from"
    } | {
        "the number format": initial.environment["precision"],
        "the training text": initial.data_fingerprint[:HASH_DIGITS],
        "the validation text": initial.validation_fingerprint[:HASH_DIGITS],
    }
    _check_agreement(world, facts, "give all machines the same config and text")


def checksum(model: Network) -> str:
    """Return a checksum of the bytes of all weights."""
    total = 0
    for weight in model.parameters():
        content = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
        total = zlib.crc32(content.numpy().data, total)
    return f"{total:08x}"


def _check_agreement(world: World, facts: Mapping[str, str], remedy: str) -> None:
    """Raise in all processes the first fact in which one of them differs from rank 0."""
    first, *others = (json.loads(line) for (line,) in world.gather([json.dumps(dict(facts))]))
    for rank, own in enumerate(others, start=1):
        for name in {**first, **own}:
            expected, got = first.get(name, "nothing"), own.get(name, "nothing")
            if got != expected:
                raise TrainingError(
                    f"rank {rank}",
                    f"{name} differs from rank 0, which has {expected}",
                    got=got,
                    remedy=remedy,
                )


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
    members = candidates[:count]
    check_validation(trained.model, trained.tokenizers, config)
    # On the CPU: the sums are in float64, which Apple's GPU lacks.
    load_average(members, trained.model)
    model = trained.model.to(device)
    validation = _validate(model, trained, device)
    score = selection_score(validation, config)
    best = run.pointed("best")
    if best is None or not best.is_dir():
        # It was removed by hand: the best that is left counts.
        best = next(iter(_validated(run)), None)
    fingerprint = validation_fingerprint(config)
    best_score = None
    if best is not None:
        progress = load_progress(best)
        best_score = progress.score
        if progress.validation_fingerprint != fingerprint:
            # The text or the metric has changed, and scores of two kinds do not compare.
            other = load_trained_network(run, best.name).model.to(device)
            best_score = selection_score(_validate(other, trained, device), config)
    has_ended = is_finished(load_progress(steps[-1]), config.training)
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
