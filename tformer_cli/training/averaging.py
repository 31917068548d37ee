"""The average of several checkpoints of a run, judged on the validation text like any other."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from tformer_cli.device import resolve_precision
from tformer_cli.errors import CheckpointError
from tformer_cli.storage.checkpoint import load_average, save_average
from tformer_cli.storage.run_directory import RunDirectory, step_of
from tformer_cli.storage.state import best_checkpoints, load_state
from tformer_cli.storage.trained_model import load_trained_network
from tformer_cli.training.trainer import is_finished
from tformer_cli.training.validation import (
    Validation,
    check_validation,
    selection_score,
    validate,
)


@dataclass(frozen=True, slots=True)
class Average:
    """An averaged checkpoint.

    Attributes:
        checkpoint: its folder.
        members: the checkpoints it is the mean of.
        validation: what it makes of the validation text.
        score: that chooses, BLEU or negative loss.
        best_score: the same of the run's best checkpoint before; None if none was validated.
        run_has_ended: whether the run is finished; before that, its own best may still come.
        is_best: whether it is the run's best checkpoint now.
    """

    checkpoint: Path
    members: tuple[Path, ...]
    validation: Validation
    score: float
    best_score: float | None
    run_has_ended: bool
    is_best: bool


def average(
    run: RunDirectory, which: Literal["last", "best"], count: int, *, device: torch.device
) -> Average:
    """Average the last or the best checkpoints of a run, and let it be `best` if it is better.

    While the run is not finished its own best may still come, so `best` stays as it is.

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
    # On the CPU, for sums are in float64, which Apple's GPU lacks.
    load_average(members, trained.model)
    model = trained.model.to(device)
    precision = resolve_precision(config.training.precision, device)
    validation = validate(
        model,
        trained.tokenizers,
        config,
        device,
        precision,
        max_source_sentences=trained.max_source_sentences,
    )
    score = selection_score(validation, config)
    best = run.pointed("best")
    best_score = None if best is None else load_state(best).score
    newest = load_state(max(members, key=step_of))
    checkpoint = run.checkpoints / f"average-{which}-{count}"
    save_average(checkpoint, model, replace(newest, score=score))
    has_ended = is_finished(load_state(steps[-1]), config.training)
    is_best = has_ended and (best_score is None or score > best_score)
    if is_best:
        run.point("best", checkpoint)
    return Average(checkpoint, tuple(members), validation, score, best_score, has_ended, is_best)
