"""The progress of a training, and its file in a checkpoint."""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from tformer_cli.config.renamed import current_settings
from tformer_cli.errors import CheckpointError, NewerFormatError
from tformer_cli.storage.atomic import read_json
from tformer_cli.storage.run_directory import STATE_FILE

STATE_VERSION = 4
MAX_SHOWN_CHARACTERS = 60
# What every format has.
REQUIRED_KEYS = {
    *("step", "data_position", "best_step", "best_score"),
    *("num_tokens", "seconds", "data_fingerprint", "environment"),
}
# Field names up to format 3, which also had `epoch` and `batch` for the data position.
FORMER_KEYS = {
    "judged_by": "validation_fingerprint",
    "num_stale": "num_bad_validations",
    "left_out": "skipped_batches",
    "num_failed": "num_consecutive_skips",
    "num_scaled": "num_loss_scale_steps",
    "is_due": "is_scheduled",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingProgress:
    """Progress of a training run, stored in the state.json of each checkpoint.

    Scores compare only if their validation fingerprints are equal. Resuming is bit-exact if the
    environments are: torch version, threads, device, processor features, precision of matrix
    products, compiled or eager kernels, number of processes.
    """

    step: int = 0  # optimizer steps taken
    data_position: tuple[int, int] = (0, 0)  # (epoch, batch) of the next batch
    best_step: int | None = None  # of the best validation so far
    best_score: float | None = None
    num_tokens: int = 0  # target tokens trained on
    seconds: float = 0.0  # in optimizer steps, waiting for data included
    data_fingerprint: str = ""  # hash of the training examples and of the tokenizers
    environment: dict[str, str] = field(default_factory=dict)
    # 99th percentile of the sentences per source line of the training text, if known
    max_source_sentences: int | None = None
    tokenizer_fingerprint: str = ""  # empty in files of older versions
    settings: dict[str, str] = field(default_factory=dict)  # that determine the trajectory, by key
    validation_fingerprint: str = ""  # hash of what a score depends on besides the model
    score: float | None = None  # BLEU or negative loss of the validation at this step
    num_bad_validations: int = 0  # since the last better one, for early stopping
    skipped_batches: tuple[tuple[int, int], ...] = ()  # (epoch, batch): loss or gradient not finite
    num_consecutive_skips: int = 0  # since the last optimizer step
    learning_rate_factor: float = 1.0  # lowered by each rollback
    num_rollbacks: int = 0  # to an earlier checkpoint
    loss_scale: float | None = None  # of the next step
    num_loss_scale_steps: int = 0  # since the loss scale changed
    is_scheduled: bool = False  # not saved by an interruption alone

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the progress whose `dataclasses.asdict`, perhaps by way of JSON, is `content`."""
        tuples = {
            "data_position": tuple(content.get("data_position", ())),
            "skipped_batches": tuple(map(tuple, content.get("skipped_batches", ()))),
        }
        return cls(**{**content, **tuples})


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_number(value: Any, low: float = -math.inf, high: float = sys.float_info.max) -> bool:
    # The score of a model whose loss is not finite is -inf.
    return type(value) in (int, float) and low <= value <= high


def _is_data_position(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))


# Whether a JSON value is one of a field's type.
_OF_TYPE: dict[object, Callable[[Any], bool]] = {
    int: _is_count,
    int | None: lambda value: value is None or _is_count(value),
    float: _is_number,
    float | None: lambda value: value is None or _is_number(value),
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    dict[str, str]: lambda value: (
        isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    ),
    tuple[int, int]: _is_data_position,
    tuple[tuple[int, int], ...]: lambda value: (
        isinstance(value, list) and all(map(_is_data_position, value))
    ),
}
# Whether it is one of a field, by the type or the range.
_VALID: dict[str, Callable[[Any], bool]] = {
    "format_version": _is_count,
    **{item.name: _OF_TYPE[item.type] for item in fields(TrainingProgress)},
    "seconds": lambda value: _is_number(value, 0.0),
    "learning_rate_factor": lambda value: _is_number(value, sys.float_info.min, 1.0),
    "loss_scale": lambda value: value is None or _is_number(value, sys.float_info.min),
}


def save_progress(state: TrainingProgress, directory: Path) -> None:
    """Write the state.json of a checkpoint."""
    content = asdict(state) | {"format_version": STATE_VERSION}
    (directory / STATE_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load_progress(directory: Path) -> TrainingProgress:
    """Read the state.json of a checkpoint, of this version or an older one.

    A value that no training writes is refused, and so is a newer format.
    """
    file = directory / STATE_FILE
    try:
        content = {FORMER_KEYS.get(name, name): value for name, value in read_json(file).items()}
        if "epoch" in content and "batch" in content:
            content["data_position"] = [content.pop("epoch"), content.pop("batch")]
        version = content.get("format_version", 0)
        if _is_count(version) and version > STATE_VERSION:
            raise NewerFormatError.of(str(file), version, STATE_VERSION)
        if absent := REQUIRED_KEYS - content.keys():
            raise ValueError(f"no {min(absent)}")
        for name, value in content.items():
            if name in _VALID and not _VALID[name](value):
                raise ValueError(f"{name} {json.dumps(value)[:MAX_SHOWN_CHARACTERS]}")
        content.pop("format_version", None)
        content["settings"] = current_settings(content.get("settings", {}))
        return TrainingProgress.from_dict(content)
    except FileNotFoundError:
        remedy = "name another checkpoint, or train with `fresh=True`"
        raise CheckpointError(str(file), "no such file", remedy=remedy) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        remedy = "use an earlier checkpoint"
        raise CheckpointError(str(file), "is damaged", got=str(error), remedy=remedy) from None


def best_checkpoints(checkpoints: Sequence[Path]) -> list[Path]:
    """Return the validated checkpoints, the best first, the later first of equal ones.

    Those with another validation fingerprint than the newest do not compare and are left out.
    """
    states = [(load_progress(checkpoint), checkpoint) for checkpoint in checkpoints]
    newest = max((state for state, _ in states), key=lambda state: state.step, default=None)
    scored = [
        (state.score, state.step, checkpoint)
        for state, checkpoint in states
        if state.score is not None
        and newest is not None
        and state.validation_fingerprint == newest.validation_fingerprint
    ]
    return [checkpoint for *_, checkpoint in sorted(scored, reverse=True)]
