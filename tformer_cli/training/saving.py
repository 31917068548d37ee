"""Checkpoints of a run: saved, restored and dropped.

Rank 0 alone reads and writes them; `training.replicas` broadcasts what it has read. The optimizer
state of a weight is kept by the process that owns it.
"""

from dataclasses import replace
from pathlib import Path

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.model.network import Network
from tformer_cli.storage.atomic import recover_interrupted_writes, remove_directory
from tformer_cli.storage.checkpoint import load_optimizer, load_weights, save_checkpoint
from tformer_cli.storage.integrity import trained_weights, verify_checksums
from tformer_cli.storage.run_directory import STATE_FILE, RunDirectory
from tformer_cli.storage.state import TrainingProgress, best_checkpoints, load_progress
from tformer_cli.training.resume import scheduled_checkpoints
from tformer_cli.training.step import TrainState


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
        best = next(iter(validated_checkpoints(run)), None)
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


def validated_checkpoints(run: RunDirectory) -> list[Path]:
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
    best = validated_checkpoints(run)[: config.keep_best]
    kept = [*newest, run.pointed("last"), run.pointed("best"), *best]
    for checkpoint in run.step_checkpoints():
        if checkpoint not in kept:
            remove_directory(checkpoint)
    recover_interrupted_writes(run.checkpoints)
