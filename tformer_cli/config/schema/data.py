"""Data: `data`."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from tformer_cli.config.schema.fields import Bounds, Count, PositiveFloat
from tformer_cli.errors import Problem

# Reserved ids of tags in every vocabulary.
MAX_TAGS = 10


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
    """A parallel text to train on, with its weight and its tags."""

    weight: PositiveFloat = 1.0
    """Repetitions of each line per epoch; 2.5 is two or three, sampled for each epoch."""
    tags: tuple[str, ...] = ()
    """Names of reserved tokens that each source begins with, such as `[back-translated]` (Caswell
    et al. 2019); at most 10 different ones in `data.train`."""

    def conflicts(self) -> Iterator[Problem]:
        for index, name in enumerate(self.tags):
            if not name.isprintable() or name.split() != [name]:
                what = "must be a name without whitespace or a control character"
                yield Problem(f"tags.{index}", what, json.dumps(name), "rename it")
            elif name in self.tags[:index]:
                yield Problem(f"tags.{index}", "is a tag of this text already", name)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainTrainingText(PlainText):
    """A monolingual text to train on, with its weight."""

    weight: PositiveFloat = 1.0
    """Repetitions of each line per epoch; 2.5 is two or three, sampled for each epoch."""


Text = ParallelText | PlainText
AnyTrainingText = TrainingText | PlainTrainingText
_Text = TypeVar("_Text", bound=Text)


def tag_names(texts: Sequence[AnyTrainingText]) -> tuple[str, ...]:
    """Return all tags of training texts, in the order of their first appearance."""
    tags = (name for text in texts if isinstance(text, TrainingText) for name in text.tags)
    return tuple(dict.fromkeys(tags))


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

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags, in the order of their reserved ids."""
        return tag_names(self.train)

    @property
    def max_length(self) -> int:
        """Maximum length of either side of a training pair, with its tags and without EOS."""
        texts = (text for text in self.train if isinstance(text, TrainingText))
        return self.filters.max_length + max((len(text.tags) for text in texts), default=0)

    def texts(self) -> dict[str, Text]:
        """Return every text by key path."""
        return {
            **{f"train.{index}": text for index, text in enumerate(self.train)},
            "valid": self.valid,
            **{f"test.{name}": text for name, text in self.test.items()},
        }

    def with_files(self, path_of: Callable[[Path], Path]) -> Self:
        """Return the data with another path for each text file, by `path_of`."""

        def moved(text: _Text) -> _Text:
            files: dict[str, Any] = {side: path_of(file) for side, file in text.files.items()}
            return replace(text, **files)

        return replace(
            self,
            train=tuple(map(moved, self.train)),
            valid=moved(self.valid),
            test={name: moved(text) for name, text in self.test.items()},
        )

    def conflicts(self) -> Iterator[Problem]:
        if not self.train:
            yield Problem("train", "needs at least one pair of files", "an empty list")
        if len(self.tags) > MAX_TAGS:
            what = f"has more than the {MAX_TAGS} tags that a vocabulary reserves"
            yield Problem("train", what, ", ".join(self.tags), "share tags between texts")
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
