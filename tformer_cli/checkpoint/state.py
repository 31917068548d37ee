"""Where a run stood when a checkpoint was taken."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tformer_cli.checkpoint.layout import FORMAT_VERSION, STATE_FILE
from tformer_cli.errors import CheckpointError


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """Where a run stood when a checkpoint was taken.

    Attributes:
        step: optimiser steps taken.
        epoch: epoch of the next batch.
        batch: place of the next batch in that epoch.
        best_step: step of the best checkpoint so far, or None before the first validation.
        best_score: its score.
        num_tokens: target tokens trained on.
        seconds: time spent in optimiser steps, waiting for their batches included.
        data_fingerprint: hash of the training examples and of the tokenizers that made them.
        max_source_sentences: that 99 of 100 source lines of the training text do not exceed; None
            where nobody has counted.
        environment: torch version, threads, device, what its processor can do, number format of
            matrix products, and number of processes; a resumed run is exact when they agree.
        settings: those of the config that decide what the steps compute, by key path.
        judged_by: hash of what scores depend on besides the model; only scores of one compare.
        score: of the validation at this very step, BLEU or negative loss; None if there was none.
        num_stale: validations since the best one.
        left_out: (epoch, batch) of each batch whose loss or gradient was not finite.
        num_failed: how many of them in a row came just now; a step begins the count again.
        learning_rate_factor: of all steps to come; each rollback lowers it.
        num_rollbacks: how often the training went back to a checkpoint.
        loss_scale: factor of the loss in the next step; None before the first.
        num_scaled: steps since that factor changed.
        is_due: whether the checkpoint was due; what an interruption alone saved is not.
        format_version: of these files.
    """

    step: int
    epoch: int
    batch: int
    best_step: int | None
    best_score: float | None
    num_tokens: int
    seconds: float
    data_fingerprint: str
    environment: dict[str, str]
    max_source_sentences: int | None = None
    settings: dict[str, str] = field(default_factory=dict)
    judged_by: str = ""
    score: float | None = None
    num_stale: int = 0
    left_out: tuple[tuple[int, int], ...] = ()
    num_failed: int = 0
    learning_rate_factor: float = 1.0
    num_rollbacks: int = 0
    loss_scale: float | None = None
    num_scaled: int = 0
    is_due: bool = False
    format_version: int = FORMAT_VERSION

    @classmethod
    def beginning(cls, data_fingerprint: str, environment: dict[str, str]) -> Self:
        """Return where a run stands before its first step."""
        return cls(
            step=0,
            epoch=0,
            batch=0,
            best_step=None,
            best_score=None,
            num_tokens=0,
            seconds=0.0,
            data_fingerprint=data_fingerprint,
            environment=environment,
        )


def save_state(state: TrainingState, directory: Path) -> None:
    """Write where a run stands into a checkpoint."""
    content = json.dumps(dataclasses.asdict(state), indent=2) + "\n"
    (directory / STATE_FILE).write_text(content, encoding="utf-8")


def load_state(directory: Path) -> TrainingState:
    """Read where a run stood.

    Raises:
        CheckpointError: the file is missing, damaged or of a newer version.
    """
    file = directory / STATE_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("format_version", 0) > FORMAT_VERSION:
            raise CheckpointError(
                str(file),
                f"was written by a newer tformer; this one reads format {FORMAT_VERSION}",
                got=f"format {content['format_version']}",
                remedy="upgrade tformer",
            )
        content["left_out"] = tuple(map(tuple, content.get("left_out", ())))
        return TrainingState(**content)
    except FileNotFoundError:
        raise CheckpointError(
            str(file), "no such file", remedy="name another checkpoint, or train with --fresh"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            str(file), "is damaged", got=str(error), remedy="use an earlier checkpoint"
        ) from None


def best_checkpoints(checkpoints: Sequence[Path]) -> list[Path]:
    """Return the validated ones among some checkpoints, the best first; of equal ones the later.

    Those that were judged otherwise than the newest do not compare and are left out.

    Raises:
        CheckpointError: one of them is damaged.
    """
    states = [(load_state(checkpoint), checkpoint) for checkpoint in checkpoints]
    judged_by = {state.step: state.judged_by for state, _ in states}
    newest = max(judged_by, default=0)
    scored = [
        (state.score, state.step, checkpoint)
        for state, checkpoint in states
        if state.score is not None and state.judged_by == judged_by[newest]
    ]
    return [checkpoint for *_, checkpoint in sorted(scored, reverse=True)]
