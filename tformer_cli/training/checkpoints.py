"""The checkpoints of a training: taken, gone back to, and dropped when there are enough."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import CheckpointError, Problem
from tformer_cli.model.network import Network
from tformer_cli.storage.atomic import recover_interrupted_writes, remove_directory
from tformer_cli.storage.checkpoint import load_optimizer, load_weights, save_checkpoint
from tformer_cli.storage.integrity import verify_checksums
from tformer_cli.storage.run_directory import RAW_MODEL_FILE, STATE_FILE, RunDirectory, step_of
from tformer_cli.storage.state import TrainingProgress, best_checkpoints, load_state
from tformer_cli.training.ema import MovingAverage
from tformer_cli.training.resume import trajectory_settings

Log = Callable[[str], object]


class Checkpoints:
    """Saves what a training changes, and brings it back."""

    def __init__(
        self,
        run: RunDirectory,
        config: TrainingConfig,
        model: Network,
        optimizer: torch.optim.Optimizer,
        average: MovingAverage | None,
        world: World = SINGLE_PROCESS,
    ) -> None:
        """Serve a training.

        Args:
            run: where the checkpoints are.
            config: how many of them are kept.
            model: what the optimiser moves.
            optimizer: its moments.
            average: of the model, where there is one.
            world: the processes that train together; the first alone writes and removes.
        """
        self.run = run
        self.config = config
        self.model = model
        self.optimizer = optimizer
        self.average = average
        self.world = world

    def save(self, state: TrainingProgress) -> None:
        """Take a checkpoint, and let `last` and perhaps `best` stand for it."""
        if not self.world.is_main_process:
            return
        checkpoint = self.run.checkpoint(state.step)
        average = None if self.average is None else self.average.model
        state = replace(state, is_scheduled=self.config.saves_at(state.step))
        save_checkpoint(checkpoint, self.model, self.optimizer, state, average=average)
        if state.best_step == state.step and not self._is_below_average(state):
            self.run.point("best", checkpoint)
        self.run.point("last", checkpoint)
        self._drop_old()

    def go_back(self, checkpoint: Path) -> TrainingProgress:
        """Bring back a checkpoint, and forget those after it: their steps will be taken again.

        Returns:
            Where the run stood.
        """
        state = load_state(checkpoint)
        if self.average is None:
            load_weights(checkpoint, self.model)
        else:
            load_weights(checkpoint, self.average.model)
            load_weights(checkpoint, self.model, RAW_MODEL_FILE)
        load_optimizer(checkpoint, self.model, self.optimizer)
        if self.world.is_main_process:
            self._forget_after(checkpoint, state)
        return state

    def begin_again(self, first: Network) -> None:
        """Bring back the weights of a model that has taken no step."""
        self.model.load_state_dict(first.state_dict())
        if self.average is not None:
            self.average.model.load_state_dict(first.state_dict())
        self.optimizer.state.clear()

    def _forget_after(self, checkpoint: Path, state: TrainingProgress) -> None:
        """Let a checkpoint be the last one."""
        steps = self.run.step_checkpoints()
        for later in steps[steps.index(checkpoint) + 1 :]:
            remove_directory(later)
        # The run that was trained last is the one whose pointer is the newest.
        if self.run.pointed("last") != checkpoint:
            self.run.point("last", checkpoint)
        self._mend_best(state)
        # A kill may have come before this.
        self._drop_old()

    def _mend_best(self, state: TrainingProgress) -> None:
        """Let `best` be what it was at a state, or nothing if that is no longer there."""
        if self._best_average() is not None:
            return
        best = self.run.pointed("best")
        wanted = None if state.best_step is None else self.run.checkpoint(state.best_step)
        if wanted is not None and wanted.is_dir():
            self.run.point("best", wanted)
        elif best is not None:
            (self.run.path / "best").unlink()

    def _best_average(self) -> Path | None:
        """Return the average that is `best`, made when the training had ended before, if one is."""
        best = self.run.pointed("best")
        if best is None or not best.is_dir() or best.name.startswith("step-"):
            return None
        return best

    def _is_below_average(self, state: TrainingProgress) -> bool:
        """Return whether `best` is an average that the same validation finds better."""
        average = self._best_average()
        if average is None or verify_checksums(average, [STATE_FILE]) is not None:
            return False
        made = load_state(average)
        if (
            made.validation_fingerprint != state.validation_fingerprint
            or made.score is None
            or state.score is None
        ):
            return False
        return made.score > state.score

    def _drop_old(self) -> None:
        """Keep the newest checkpoints and the best ones, whether there was an interruption or not.

        What it saved is kept as long as it is the last one.
        """
        steps = self.run.step_checkpoints()
        best = best_checkpoints(
            [step for step in steps if verify_checksums(step, [STATE_FILE]) is None]
        )
        newest = _due(steps, self.config)[-self.config.keep_checkpoints :]
        pointed = self.run.pointed("last"), self.run.pointed("best")
        kept = [*newest, *pointed, *best[: self.config.keep_best]]
        for checkpoint in steps:
            if checkpoint not in kept:
                remove_directory(checkpoint)
        recover_interrupted_writes(self.run.checkpoints)


def last_checkpoint(run: RunDirectory, log: Log) -> Path | None:
    """Return the checkpoint to go on from, or None if the run has none yet.

    It is the last one, or where that is damaged, the newest before it that is not.

    Args:
        run: the run folder.
        log: hears what is wrong with those that are newer.

    Raises:
        CheckpointError: none is as it was saved, or all are of another training.
        ConfigError: the config of the run cannot be read.
    """
    last, steps = run.pointed("last"), run.step_checkpoints()
    if last in steps:
        return _newest_whole(run, steps[: steps.index(last) + 1], log)
    if last is None and not steps:
        return None
    return _newest_whole(run, [*steps, last or run.path / "last"], log)


def checkpoint_before(
    run: RunDirectory, step: int, config: TrainingConfig, log: Log
) -> Path | None:
    """Return the checkpoint to go back to when no step beyond `step` can be taken, if there is one.

    It is one that an unbroken training has too, and not what an interruption saved. A checkpoint at
    that very step may hold weights that are astray already, so it is the last choice.

    Raises:
        CheckpointError: none is as it was saved.
    """
    steps = _due(run.step_checkpoints(), config)
    if len(steps) > 1 and steps[-1] == run.checkpoint(step):
        steps = [steps[-1], *steps[:-1]]
    return _newest_whole(run, steps, log) if steps else None


def _due(checkpoints: Sequence[Path], config: TrainingConfig) -> list[Path]:
    """Return those that were not taken because of an interruption.

    What was due by the settings that it was taken with stays so when they change.
    """
    return [
        checkpoint
        for checkpoint in checkpoints
        if config.saves_at(step_of(checkpoint)) or _was_due(checkpoint)
    ]


def _was_due(checkpoint: Path) -> bool:
    return (
        verify_checksums(checkpoint, [STATE_FILE]) is None and load_state(checkpoint).is_scheduled
    )


def _newest_whole(run: RunDirectory, checkpoints: Sequence[Path], log: Log) -> Path:
    """Return the last of some checkpoints that is as it was saved, and of this training."""
    settings = trajectory_settings(load_config(run.config_file))
    problems: list[Problem] = []
    for checkpoint in reversed(checkpoints):
        problem = verify_checksums(checkpoint) or _strangeness(checkpoint, settings)
        if problem is None:
            for newer in problems:
                log(str(replace(newer, remedy=f"going on from {checkpoint.name}")))
            return checkpoint
        problems.append(problem)
    raise CheckpointError(
        str(run.path),
        "has no checkpoint that is whole",
        got="; ".join(map(str, problems)),
        remedy="restore one, or begin again with `fresh=True`",
    )


def _strangeness(checkpoint: Path, settings: Mapping[str, str]) -> Problem | None:
    """Return by what a whole checkpoint is one of another training, or None if it is of this one.

    Args:
        checkpoint: as it was saved.
        settings: that this training has; an older program may have known fewer.
    """
    state = load_state(checkpoint)
    its_own = {"step": str(state.step), **state.settings}
    known = {"step": str(step_of(checkpoint)), **settings}
    for key, value in its_own.items():
        if known.get(key, value) != value:
            return Problem(str(checkpoint), "belongs to another training", got=f"{key} {value}")
    return None
