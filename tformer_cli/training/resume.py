"""Whether a run can be trained in and resumed, from which checkpoint and data position."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import leaves
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.device import can_compile, hardware_name
from tformer_cli.errors import CheckpointError, Problem, TrainingError, UsageError
from tformer_cli.storage.atomic import recover_interrupted_writes, storage_errors
from tformer_cli.storage.integrity import verify_checksums
from tformer_cli.storage.lock import lock_file
from tformer_cli.storage.run_directory import STATE_FILE, RunDirectory, step_of
from tformer_cli.storage.state import TrainingProgress, load_progress

Log = Callable[[str], object]

# Keys that do not change what training steps compute; `gradient_accumulation_steps` changes
# dropout masks, dropped layers and cut tokens only. The training text is compared by the hash of
# its examples and their weights, not by its path.
FREE_KEYS = (
    "data.source_language",
    "data.target_language",
    "data.language_marks",
    "data.prefixes",
    "data.root",
    "data.train",
    "data.sampling",
    "data.valid",
    "data.test",
    "training.gradient_accumulation_steps",
    "training.gradient_checkpointing",
    "training.validate_every",
    "training.validation_decoding",
    "training.sample_translations",
    "training.save_every",
    "training.keep_checkpoints",
    "training.keep_best",
    "training.selection_metric",
    "training.patience",
    "training.average_checkpoints",
    "training.report_every",
    "training.log_parameter_norms",
    "training.tensorboard",
    "training.wandb",
    "decoding",
    "evaluation",
)
TRAIN_FURTHER = "train its weights further: `training.init_from=RUN` `run=NEW`"
# Remedy for a run whose trajectory changed.
TRAIN_ELSEWHERE = f"start over with `fresh=True`, or {TRAIN_FURTHER}"


def check_run_folder(run: RunDirectory) -> None:
    """Refuse a folder that is not a run and holds more than hidden files."""
    signs = [run.lock_file, run.log_file, run.origin_file, *run.pointers]
    if any(sign.exists() for sign in signs) or not run.path.is_dir():
        return
    if foreign := sorted(path.name for path in run.path.iterdir() if path.name[0] != "."):
        raise UsageError(
            str(run.path),
            "is not empty and not a run folder",
            got=f"{foreign[0]} in it",
            remedy="name another folder with `run`",
        )


@contextlib.contextmanager
def locked(run: RunDirectory) -> Iterator[None]:
    """Keep other processes from training in a run folder.

    The lock ends with this process. The file stays, with the id of the process that held it last.
    """
    with lock_file(run.lock_file) as (handle, was_free):
        if not was_free:
            holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
            raise TrainingError(
                str(run.path),
                "another process is training here",
                got=f"process {holder}" if holder else None,
                remedy="wait for it, or train elsewhere with `run`",
            )
        with storage_errors(run.lock_file):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield


def trajectory_settings(config: Config) -> dict[str, str]:
    """Return the settings that decide what training steps compute, by key path."""
    return {key: str(value) for key, value in leaves(config) if not _is_free(key)}


def accepted_changes(run: RunDirectory, before: Config, now: Config) -> list[str]:
    """Return a line for each changed key that leaves the trajectory alone.

    Raises:
        CheckpointError: a key of the trajectory changed.
    """
    old, new = dict(leaves(before)), dict(leaves(now))
    accepted = []
    for key in sorted(old.keys() | new.keys()):
        was, is_now = old.get(key, "nothing"), new.get(key, "nothing")
        if was == is_now:
            continue
        if not (_is_free(key) or _is_moved(key, was)):
            raise CheckpointError(
                str(run.path),
                f"{key} was {was} when this run began",
                got=str(is_now),
                remedy=f"change it back, {TRAIN_ELSEWHERE}",
            )
        accepted.append(f"accepted a changed setting: {key}: {was} -> {is_now}")
    return accepted


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE_KEYS)


def _is_moved(key: str, was: object) -> bool:
    """Return whether a key named a pretrained run that is no longer there, as on another machine.

    Once begun, a run needs it no more.
    """
    return key == "training.init_from" and was is not None and not Path(str(was)).exists()


def checkpoint_to_resume(
    run: RunDirectory, config: Config, log: Log, *, fresh: bool
) -> Path | None:
    """Return the checkpoint to resume from, if any, and log the accepted changes of the config.

    Raises:
        CheckpointError: none is intact, a key of the trajectory changed, or the run has a model
            and no training.
    """
    recover_interrupted_writes(run.checkpoints)
    checkpoint = None if fresh else last_checkpoint(run, log)
    if checkpoint is not None:
        if step_of(checkpoint) == 0:
            what = "has a model, and no training that could be resumed"
            raise CheckpointError(str(run.path), what, remedy=TRAIN_FURTHER)
        for change in accepted_changes(run, load_config(run.config_file), config):
            log(f"{run.path}: {change}")
    return checkpoint


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


def checkpoint_before(
    run: RunDirectory, step: int, config: TrainingConfig, log: Log
) -> Path | None:
    """Return the checkpoint to roll back to when no step beyond `step` can be taken, if any.

    It is one of an uninterrupted training. One at that very step may hold diverged weights already,
    so it is the last choice.
    """
    steps = scheduled_checkpoints(run, config)
    if len(steps) > 1 and steps[-1] == run.checkpoint(step):
        steps = [steps[-1], *steps[:-1]]
    return _newest_intact(run, steps, log) if steps else None


def scheduled_checkpoints(run: RunDirectory, config: TrainingConfig) -> list[Path]:
    """Return the checkpoints due by this config or by that of their time, whatever interrupted."""
    return [
        checkpoint
        for checkpoint in run.step_checkpoints()
        if config.saves_at(step_of(checkpoint))
        or (
            verify_checksums(checkpoint, [STATE_FILE]) is None
            and load_progress(checkpoint).is_scheduled
        )
    ]


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
        if expected.get(key, value) != value and not _is_moved(key, value):
            return Problem(str(checkpoint), "belongs to another training", got=f"{key} {value}")
    return None


def check_same_data(run: RunDirectory, saved: TrainingProgress, initial: TrainingProgress) -> None:
    """Refuse to go on with another training text, or with another encoding of it."""
    if saved.data_fingerprint != initial.data_fingerprint:
        raise CheckpointError(
            str(run.path),
            "the training text or its tokenizer has changed since this run began",
            remedy=f"restore it, {TRAIN_ELSEWHERE}",
        )


def check_data_position(checkpoint: Path, batch: int, num_batches: int) -> None:
    """Refuse a data position behind the last batch of its epoch."""
    # With small weights an epoch may have none.
    if batch >= max(1, num_batches):
        raise CheckpointError(
            str(checkpoint / STATE_FILE),
            "is damaged",
            got=f"batch {batch} of an epoch of {num_batches}",
            remedy="use an earlier checkpoint",
        )


def resumed(saved: TrainingProgress, initial: TrainingProgress) -> TrainingProgress:
    """Return saved progress in the settings and the environment of `initial`, as of now.

    The data position is the saved one.
    """
    progress = replace(
        saved,
        environment=initial.environment,
        tokenizer_fingerprint=initial.tokenizer_fingerprint,
        settings=initial.settings,
        validation_fingerprint=initial.validation_fingerprint,
    )
    precision = initial.environment["precision"]
    if saved.environment.get("precision", precision) != precision:
        # Without float16 it stays 1, at which gradients in float16 underflow.
        progress = replace(progress, loss_scale=None, num_loss_scale_steps=0)
    if saved.validation_fingerprint != initial.validation_fingerprint:
        # Scores of two kinds do not compare.
        progress = replace(
            progress, score=None, best_score=None, best_step=None, num_bad_validations=0
        )
    return progress


def environment_of(
    device: torch.device, precision: torch.dtype, num_processes: int
) -> dict[str, str]:
    """Return what bit-identical numbers depend on besides the code."""
    return {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "device": hardware_name(device),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "precision": str(precision).removeprefix("torch."),
        "kernels": "compiled" if can_compile(device) else "eager",
        "processes": str(num_processes),
    }


def environment_changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return a line for each part of the environment that has changed."""
    return [
        f"{name} was {before[name]} and is {value} now, so the numbers may differ"
        for name, value in now.items()
        if before.get(name, value) != value
    ]
