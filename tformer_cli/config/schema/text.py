"""Texts of a config: two files of lines, a file of pairs, or one of monolingual lines."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeGuard

from tformer_cli.config.schema.fields import LEFT_OUT_IF_NULL, Bounds
from tformer_cli.errors import Problem

OnError = Literal["stop", "skip"]


class TextFiles:
    """What all texts have: files."""

    __slots__ = ()

    def __post_init__(self) -> None:
        # A caller in Python may name files by strings.
        for key, file in self.files.items():
            object.__setattr__(self, key, Path(file))

    @property
    def files(self) -> dict[str, Path]:
        """The files by key."""
        raise NotImplementedError

    @property
    def source_file(self) -> Path:
        """The file of the source lines."""
        return next(iter(self.files.values()))

    @property
    def target_file(self) -> Path:
        """The file of the target lines."""
        return list(self.files.values())[-1]

    @property
    def num_sides(self) -> int:
        """2 of parallel text, 1 of monolingual text."""
        return 2

    @property
    def reading(self) -> str:
        """What decides how the files are read, besides their content; empty for lines."""
        return ""

    def locations(self, index: int) -> list[str]:
        """Return where each side of a row is, for messages."""
        return [f"{file}:{index + 1}" for file in self.files.values()]


@dataclass(frozen=True, kw_only=True)
class Directed(TextFiles):
    """The languages of a parallel text."""

    # Without slots of its own, it can be a base beside a class that has some.
    __slots__ = ()

    source_language: str | None = field(default=None, metadata=LEFT_OUT_IF_NULL)
    """ISO code of its source language; null for that of `data`."""
    target_language: str | None = field(default=None, metadata=LEFT_OUT_IF_NULL)
    """ISO code of its target language; null for that of `data`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelText(Directed):
    """Two line-aligned text files."""

    source: Path
    """Source file: plain text, also compressed (`.gz`, `.bz2`, `.xz`, `.zst`), UTF-8, one sentence
    per line."""
    target: Path
    """Target file: line n is the translation of source line n."""

    @property
    def files(self) -> dict[str, Path]:
        """The files by key."""
        return {"source": self.source, "target": self.target}


@dataclass(frozen=True, kw_only=True, slots=True)
class PairsFile(Directed):
    """A file that holds both sides of a parallel text."""

    pairs: Path
    """File of both sides, instead of source and target: TSV, CSV, JSON Lines, TMX or XLIFF, also
    compressed; a zip with a file for each language (OPUS); Parquet or Arrow."""
    source_field: str | None = None
    """Source column, by name or number from 1, or JSON key path (`translation.en`); null for the
    language, `source`, `src`, or column 1."""
    target_field: str | None = None
    """Target column or key path; null for the language, `target`, `tgt`, `trg`, or column 2."""
    languages: tuple[str, str] | None = None
    """Languages of source and target as the file names them; null for `source_language` and
    `target_language`."""
    on_error: OnError = "stop"
    """A record without a pair stops the program, or is skipped and counted in a warning."""

    @property
    def files(self) -> dict[str, Path]:
        """The file by key."""
        return {"pairs": self.pairs}

    @property
    def reading(self) -> str:
        """All keys but the path, and the endings that tell the format."""
        fields = self.source_field, self.target_field, self.languages, self.on_error
        return json.dumps([self.pairs.suffixes, *fields])

    def locations(self, index: int) -> list[str]:
        """Return the number of a pair, twice: records may take several lines, or none."""
        return [f"{self.pairs}, pair {index + 1}"] * 2

    def conflicts(self) -> Iterator[Problem]:
        if (self.source_field is None) != (self.target_field is None):
            missing = "source_field" if self.source_field is None else "target_field"
            yield Problem(missing, "is required beside the field of the other side")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainText(TextFiles):
    """A monolingual text in the source language."""

    text: Path
    """Text file of a masked_encoder, instead of source and target: plain text, also compressed,
    UTF-8, one sentence per line, in the source language."""

    @property
    def files(self) -> dict[str, Path]:
        """The file by key."""
        return {"text": self.text}

    @property
    def num_sides(self) -> int:
        """1: source lines."""
        return 1


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """The weight of a training text."""

    __slots__ = ()

    # Far smaller ones leave epochs without a line, and far larger ones do not fit into memory.
    weight: Annotated[float, Bounds(ge=1e-6, le=1e6)] = 1.0
    """Repetitions of each line per epoch; 2.5 is two or three, sampled for each epoch."""


@dataclass(frozen=True, kw_only=True)
class Tagged(Weighted):
    """The weight and the tags of a parallel text to train on."""

    __slots__ = ()

    tags: tuple[str, ...] = ()
    """Names of reserved tokens that each source begins with, such as `[back-translated]` (Caswell
    et al. 2019); at most 10 different ones in `data.train`."""
    extract: Literal["phrases"] | None = field(default=None, metadata=LEFT_OUT_IF_NULL)
    """`phrases`: trains on the phrase pairs of the text, as `tformer extract-phrases` writes them,
    without lines of the validation text and the test texts; null for its lines."""

    def conflicts(self) -> Iterator[Problem]:
        for index, name in enumerate(self.tags):
            if not name.isprintable() or name.split() != [name]:
                what = "must be a name without whitespace or a control character"
                yield Problem(f"tags.{index}", what, json.dumps(name), "rename it")
            elif name in self.tags[:index]:
                yield Problem(f"tags.{index}", "is a tag of this text already", name)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingText(Tagged, ParallelText):
    """A parallel text to train on, with its weight and its tags."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPairsFile(Tagged, PairsFile):
    """A file of pairs to train on, with its weight and its tags."""

    def conflicts(self) -> Iterator[Problem]:
        yield from PairsFile.conflicts(self)
        yield from Tagged.conflicts(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainTrainingText(Weighted, PlainText):
    """A monolingual text to train on, with its weight."""


# Source and target language.
Direction = tuple[str, str]
Bitext = ParallelText | PairsFile
Text = Bitext | PlainText
TrainingBitext = TrainingText | TrainingPairsFile
AnyTrainingText = TrainingBitext | PlainTrainingText


def has_phrases(text: Text) -> TypeGuard[TrainingBitext]:
    """Return whether a training text stands for its phrase pairs."""
    return isinstance(text, TrainingBitext) and text.extract == "phrases"
