"""The text: `data`."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tformer_cli.config.schema.limits import Bounds, Conflict, Count, PositiveFloat


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelText:
    """Two text files whose lines correspond."""

    source: Path
    """Source side: plain text or gzip (`.gz`), UTF-8, one sentence a line."""
    target: Path
    """Target side: line n translates line n of the source."""

    @property
    def files(self) -> dict[str, Path]:
        """The files by their keys."""
        return {"source": self.source, "target": self.target}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainText:
    """A text in the source language alone."""

    text: Path
    """In place of source and target, for a masked_encoder: plain text or gzip (`.gz`), UTF-8, one
    sentence a line, in the source language."""

    @property
    def files(self) -> dict[str, Path]:
        """The file by its key."""
        return {"text": self.text}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingText(ParallelText):
    """A parallel text to train on, and how often."""

    weight: PositiveFloat = 1.0
    """How many times an epoch sees each line; 2.5 is two or three times, drawn anew each epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainTrainingText(PlainText):
    """A text to train on, and how often."""

    weight: PositiveFloat = 1.0
    """How many times an epoch sees each line; 2.5 is two or three times, drawn anew each epoch."""


Text = ParallelText | PlainText
AnyTrainingText = TrainingText | PlainTrainingText


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterConfig:
    """Which training pairs to leave out; pairs with an empty side always are.

    A line of a text alone is judged like a pair that has but one side.
    """

    max_length: Count = 256
    """Longest side of a pair that is kept, in tokens."""
    max_ratio: Annotated[float, Bounds(minimum=1)] | None = None
    """Largest ratio between the two lengths of a pair that is kept, in tokens."""
    drop_duplicates: bool = False
    """Keep only the first of pairs that are equal on both sides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The text."""

    source_language: str = "source"
    """Language of the source text, as an ISO code (`en`)."""
    target_language: str = "target"
    """Language of the target text, as an ISO code; decides `evaluation.bleu.tokenize: auto`."""
    root: Path | None = None
    """Folder that the paths below are relative to; null is the folder of the config file."""
    train: tuple[AnyTrainingText, ...]
    """Texts to train on."""
    valid: Text
    """Text that chooses the best checkpoint."""
    test: dict[str, ParallelText] = field(default_factory=dict)
    """Named parallel texts for `tformer eval`."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    """Which training pairs to leave out."""

    @property
    def unit(self) -> str:
        """What the training text is counted in: pairs, or lines of a text alone."""
        return "line" if isinstance(self.train[0], PlainTrainingText) else "pair"

    def texts(self) -> dict[str, Text]:
        """Return every text by its key path."""
        return {
            **{f"train.{index}": text for index, text in enumerate(self.train)},
            "valid": self.valid,
            **{f"test.{name}": text for name, text in self.test.items()},
        }

    def conflicts(self) -> Iterator[Conflict]:
        if not self.train:
            yield Conflict("train", "needs at least one pair of files", "an empty list")
        if "valid" in self.test:
            yield Conflict("test.valid", "this name belongs to data.valid", remedy="rename it")
        for name in self.test:
            # Files in the folder eval/ of a run have this name.
            if not name.isprintable() or os.path.basename(name) != name or name in ("", ".", ".."):
                yield Conflict(
                    f"test.{name}",
                    "must be the name of a file, without a folder or a control character",
                    json.dumps(name),
                    "rename it",
                )
