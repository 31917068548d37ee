"""Whether a run may go on with a config or on a machine that are no longer those it began with."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from tformer_cli.config.schema.config import Config, leaves
from tformer_cli.device import hardware_name
from tformer_cli.errors import CheckpointError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress

# Keys that do not change what the training steps compute, but for the masks of dropout, which each
# piece of `gradient_accumulation_steps` has of its own. The training text is not compared by its
# path: the examples made from it are, by their hash.
FREE_KEYS = (
    "data.source_language",
    "data.target_language",
    "data.root",
    "data.train",
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
    "training.report_every",
    "training.log_parameter_norms",
    "training.tensorboard",
    "decoding",
    "evaluation",
)

# What to do instead of going on with a run that is no longer the same.
ELSEWHERE = (
    "begin again with `fresh=True`, or train its weights further: "
    "`training.init_from=RUN` `run=NEW`"
)


def trajectory_settings(config: Config) -> dict[str, str]:
    """Return the settings that decide what the training steps compute, by key path."""
    return {key: str(value) for key, value in leaves(config) if not _is_free(key)}


def accepted_changes(run: RunDirectory, before: Config, now: Config) -> list[str]:
    """Return a line for each changed key that does not matter to the course of the training.

    Texts that lie in another folder, under the same names, are one line.

    Raises:
        CheckpointError: a key changed that does.
    """
    old, new = dict(leaves(before)), dict(leaves(now))
    moved = _moved_data(old, new)
    accepted = [f"data moved: {moved[0]} -> {moved[1]}"] if moved else []
    for key in sorted(old.keys() | new.keys()):
        was, is_now = old.get(key, "nothing"), new.get(key, "nothing")
        if was == is_now or (moved is not None and _is_moved(was, is_now, *moved)):
            continue
        if not _is_free(key):
            raise CheckpointError(
                str(run.path),
                f"{key} has changed since this run began (it was {was})",
                got=str(is_now),
                remedy=f"change it back, {ELSEWHERE}",
            )
        accepted.append(f"accepted a changed setting: {key}: {was} -> {is_now}")
    return accepted


def _moved_data(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[Path, Path] | None:
    """Return the two folders between which the text of a run has moved, if it has.

    These are the longest ones that all moved files share.
    """
    pairs = [
        (was, new[key])
        for key, was in old.items()
        if key in new and was != new[key] and key.startswith("data.") and isinstance(was, Path)
    ]
    files = [(was, now) for was, now in pairs if isinstance(now, Path)]
    if not files:
        return None
    before, after = (Path(os.path.commonpath(sides)) for sides in zip(*files, strict=True))
    if (before, after) in files and ("data.root" not in old or old["data.root"] != before):
        # A single file that has moved alone.
        before, after = before.parent, after.parent
    return (before, after) if all(_is_moved(*file, before, after) for file in files) else None


def _is_moved(was: object, now: object, before: Path, after: Path) -> bool:
    if not isinstance(was, Path) or not isinstance(now, Path):
        return False
    if not was.is_relative_to(before) or not now.is_relative_to(after):
        return False
    return before != after and was.relative_to(before) == now.relative_to(after)


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE_KEYS)


def taken_up(saved: TrainingProgress, now: TrainingProgress) -> TrainingProgress:
    """Return a saved state as one of this sitting, without what belongs to another one.

    Args:
        saved: with a checkpoint.
        now: where the run would begin in this sitting.
    """
    state = replace(
        saved,
        environment=now.environment,
        tokenizer_fingerprint=now.tokenizer_fingerprint,
        settings=now.settings,
        validation_fingerprint=now.validation_fingerprint,
    )
    precision = now.environment["precision"]
    if saved.environment.get("precision", precision) != precision:
        # Without float16 it stays 1, at which gradients in float16 vanish.
        state = replace(state, loss_scale=None, num_loss_scale_steps=0)
    if saved.validation_fingerprint != now.validation_fingerprint:
        # Scores of two kinds do not compare.
        state = replace(state, score=None, best_score=None, best_step=None, num_bad_validations=0)
    return state


def environment_of(
    device: torch.device, precision: torch.dtype, num_processes: int
) -> dict[str, str]:
    """Return what bit-identical numbers depend on besides the code.

    Args:
        device: of the training.
        precision: number format of matrix products, which the device decides where it is `auto`.
        num_processes: that train together.
    """
    return {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "device": hardware_name(device),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "precision": str(precision).removeprefix("torch."),
        "processes": str(num_processes),
    }


def environment_changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return a line for each part of the environment that has changed."""
    return [
        f"{name} was {before[name]} and is {value} now, so the numbers may differ"
        for name, value in now.items()
        if before.get(name, value) != value
    ]
