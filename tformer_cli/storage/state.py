"""Where a run stood when a checkpoint was taken."""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tformer_cli.config.renamed import current_settings
from tformer_cli.errors import CheckpointError, NewerFormatError
from tformer_cli.json_text import read_json
from tformer_cli.storage.layout import FORMAT_VERSION, STATE_FILE


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
        tokenizer_fingerprint: hash of the tokenizers; empty where an older program wrote none.
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
    tokenizer_fingerprint: str = ""
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
    def beginning(
        cls, data_fingerprint: str, environment: dict[str, str], tokenizer_fingerprint: str = ""
    ) -> Self:
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
            tokenizer_fingerprint=tokenizer_fingerprint,
        )

    @classmethod
    def of_plain(cls, content: Mapping[str, Any]) -> Self:
        """Return the state that `dataclasses.asdict` and JSON have made plain data of.

        Raises:
            TypeError: something is missing, or there is what this version does not know.
        """
        left_out = tuple(map(tuple, content.get("left_out", ())))
        settings = current_settings(content.get("settings", {}))
        return cls(**{**content, "left_out": left_out, "settings": settings})


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_number(value: object, low: float = -math.inf, high: float = sys.float_info.max) -> bool:
    # The score of a model whose loss is not finite is -inf.
    return not isinstance(value, bool) and isinstance(value, int | float) and low <= value <= high


def _is_positive(value: object) -> bool:
    return _is_number(value, sys.float_info.min)


def _are_positions(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, list) and len(item) == 2 and all(map(_is_count, item)) for item in value
    )


def _or_none(is_possible: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_possible(value)


# By the name of a field, whether a value that JSON has for it is possible.
_POSSIBLE: dict[str, Callable[[object], bool]] = {
    "step": _is_count,
    "epoch": _is_count,
    "batch": _is_count,
    "best_step": _or_none(_is_count),
    "best_score": _or_none(_is_number),
    "num_tokens": _is_count,
    "seconds": lambda value: _is_number(value, 0.0),
    "data_fingerprint": _is_text,
    "environment": _are_texts,
    "max_source_sentences": _or_none(_is_count),
    "tokenizer_fingerprint": _is_text,
    "settings": _are_texts,
    "judged_by": _is_text,
    "score": _or_none(_is_number),
    "num_stale": _is_count,
    "left_out": _are_positions,
    "num_failed": _is_count,
    "learning_rate_factor": lambda value: _is_number(value, sys.float_info.min, 1.0),
    "num_rollbacks": _is_count,
    "loss_scale": _or_none(_is_positive),
    "num_scaled": _is_count,
    "is_due": lambda value: isinstance(value, bool),
    "format_version": _is_count,
}
_LONGEST_SHOWN = 60


def save_state(state: TrainingState, directory: Path) -> None:
    """Write where a run stands into a checkpoint."""
    content = json.dumps(dataclasses.asdict(state), indent=2) + "\n"
    (directory / STATE_FILE).write_text(content, encoding="utf-8")


def load_state(directory: Path) -> TrainingState:
    """Read where a run stood.

    Raises:
        CheckpointError: the file is missing or damaged, or a value in it is impossible.
        NewerFormatError: a newer version of the program wrote it.
    """
    file = directory / STATE_FILE
    try:
        content = read_json(file)
        version = content.get("format_version", 0)
        if _is_count(version) and version > FORMAT_VERSION:
            raise NewerFormatError(
                str(file),
                f"was written by a newer tformer; this one reads format {FORMAT_VERSION}",
                got=f"format {version}",
                remedy="upgrade tformer",
            )
        for name, value in content.items():
            if name in _POSSIBLE and not _POSSIBLE[name](value):
                raise ValueError(f"{name} {json.dumps(value)[:_LONGEST_SHOWN]}")
        return TrainingState.of_plain(content)
    except FileNotFoundError:
        raise CheckpointError(
            str(file), "no such file", remedy="name another checkpoint, or train with `fresh=True`"
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
