"""Data: `data`."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tformer_cli.config.schema.fields import Bounds, Count, PositiveFloat
from tformer_cli.errors import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelText:
    """Two line-aligned text files."""

    source: Path
    """Source file: plain text or gzip (`.gz`), UTF-8, one sentence per line."""
    target: Path
    """Target file: line n is the translation of source line n."""

    @property
    def files(self) -> dict[str, Path]:
        """The files by key."""
        return {"source": self.source, "target": self.target}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainText:
    """A monolingual text in the source language."""

    text: Path
    """Text file of a masked_encoder, instead of source and target: plain text or gzip (`.gz`),
    UTF-8, one sentence per line, in the source language."""

    @property
    def files(self) -> dict[str, Path]:
        """The file by key."""
        return {"text": self.text}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingText(ParallelText):
    """A parallel text to train on, with its weight."""

    weight: PositiveFloat = 1.0
    """Repetitions of each line per epoch; 2.5 is two or three, sampled for each epoch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainTrainingText(PlainText):
    """A monolingual text to train on, with its weight."""

    weight: PositiveFloat = 1.0
    """Repetitions of each line per epoch; 2.5 is two or three, sampled for each epoch."""


Text = ParallelText | PlainText
AnyTrainingText = TrainingText | PlainTrainingText


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterConfig:
    """Filters of training pairs; pairs with an empty side are always removed.

    A line of monolingual text counts as a pair with a single side.
    """

    max_length: Count = 256
    """Maximum length of either side, in tokens; longer pairs are removed."""
    max_ratio: Annotated[float, Bounds(ge=1)] | None = None
    """Maximum ratio between the lengths of both sides, in tokens; null for no limit."""
    drop_duplicates: bool = False
    """Remove duplicate pairs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Training, validation and test texts."""

    source_language: str = "source"
    """ISO code of the source language (`en`)."""
    target_language: str = "target"
    """ISO code of the target language; decides `evaluation.bleu.tokenize: auto`."""
    root: Path | None = None
    """Folder that the paths below are relative to; null for the folder of the config file."""
    train: tuple[AnyTrainingText, ...]
    """Training texts."""
    valid: Text
    """Validation text, which selects the best checkpoint."""
    test: dict[str, ParallelText] = field(default_factory=dict)
    """Named test sets for `tformer eval`."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    """Filters of training pairs."""

    @property
    def unit(self) -> str:
        """What the training text is counted in: pairs, or lines of monolingual text."""
        return "line" if isinstance(self.train[0], PlainTrainingText) else "pair"

    def texts(self) -> dict[str, Text]:
        """Return every text by key path."""
        return {
            **{f"train.{index}": text for index, text in enumerate(self.train)},
            "valid": self.valid,
            **{f"test.{name}": text for name, text in self.test.items()},
        }

    def conflicts(self) -> Iterator[Problem]:
        if not self.train:
            yield Problem("train", "needs at least one pair of files", "an empty list")
        if "valid" in self.test:
            yield Problem("test.valid", "this name belongs to data.valid", remedy="rename it")
        for name in self.test:
            # The files below eval/ of a run have this name.
            if not name.isprintable() or os.path.basename(name) != name or name in ("", ".", ".."):
                yield Problem(
                    f"test.{name}",
                    "must be the name of a file, without a folder or a control character",
                    json.dumps(name),
                    "rename it",
                )
