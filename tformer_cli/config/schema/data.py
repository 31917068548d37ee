"""Data: `data`."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar

from tformer_cli.config.schema.fields import (
    LEFT_OUT_IF_NULL,
    Bounds,
    Count,
    CountOrZero,
)
from tformer_cli.config.schema.text import (
    AnyTrainingText,
    Bitext,
    Direction,
    PairsFile,
    PlainText,
    PlainTrainingText,
    Text,
    TrainingBitext,
    has_phrases,
)
from tformer_cli.errors import Problem

Share = Annotated[float, Bounds(ge=0, le=1)]

# Reserved ids of tags in every vocabulary.
MAX_TAGS = 10


_Text = TypeVar("_Text", bound=Text)


class _Change(Protocol):
    def __call__(self, text: _Text, /) -> _Text: ...


def target_token(language: str) -> str:
    """Return the tag that asks for a target language (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterConfig:
    """Filters of pairs, for training and for `tformer clean`; null switches one off.

    Pairs with an empty side are always removed. A line of monolingual text counts as a pair with a
    single side.
    """

    max_length: Count = 256
    """Maximum length of either side, in tokens; longer pairs are removed. `tformer clean`, which
    has no tokenizer, counts words."""
    max_ratio: Annotated[float, Bounds(ge=1)] | None = None
    """Maximum ratio between the lengths of both sides, in tokens (`tformer clean`: in words); null
    for no limit."""
    min_letters: Share | None = None
    """Minimum share of letters among the characters of either side, whitespace excluded."""
    max_markup: CountOrZero | None = None
    """Maximum number of tags, comments and entities of HTML or XML that one side has and the other
    lacks."""
    max_repeats: Count | None = None
    """Maximum number of times that a character, digits excluded, stands in succession."""
    max_other_script: Share | None = None
    """Maximum share of letters of a script in which the language is not written; Latin ones count
    where they are more than half of the letters."""
    max_copied: Share | None = None
    """Maximum share of the words of a target that its source has too, names and numbers excluded;
    fewer than three such words are allowed, and any within one language."""
    max_other_numbers: CountOrZero | None = None
    """Maximum number of numbers that one side has and the other lacks; one side may have numbers up
    to 12 in words."""
    drop_held_out: bool = False
    """Remove pairs of which a side is a line of the validation text or a test text, in any case and
    with any whitespace; in `tformer clean` of the files of `--held-out`."""
    min_language: Share | None = None
    """Minimum probability that each side is in its language, by py3langid
    (`pip install 'tformer[langid]'`); 0.1 is a good value."""
    drop_duplicates: bool = False
    """Remove duplicate pairs of the same direction."""
    max_similarity: Annotated[float, Bounds(gt=0, le=1)] | None = None
    """Remove pairs whose similarity to an earlier pair of the same direction is at least this: the
    Jaccard similarity of their character 5-grams, estimated by MinHash."""

    @property
    def drops_copies(self) -> bool:
        """Whether duplicates or near-duplicates are removed."""
        return self.drop_duplicates or self.max_similarity is not None


# Keys of filters that compare both sides.
PARALLEL_FILTERS = ("max_ratio", "max_copied", "max_other_numbers")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How often an epoch has the pairs of each direction."""

    temperature: Annotated[float, Bounds(ge=1)]
    """T: direction i with D_i of N pairs, each counted by its weight, has N p_i of them in an
    epoch, where p_i is proportional to (D_i / N) ** (1 / T); 1 is their own share, and a large T
    an equal one for all (Arivazhagan et al. 2019, section 4.2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Training, validation and test texts."""

    source_language: str = "source"
    """ISO code of the source language (`en`)."""
    target_language: str = "target"
    """ISO code of the target language; decides `evaluation.bleu.tokenize: auto`. If the texts of
    `train` have several target languages, each source begins with a tag of its own: `<2de>`."""
    language_marks: Literal["tags", "tokens"] = "tags"
    """`tags`: as above. `tokens`: each source and each target begins with the token of its
    language, which the vocabulary of an imported model (`tokenizer.kind: m2m`) has."""
    root: Path | None = None
    """Folder that the paths below are relative to; null for the folder of the config file."""
    train: tuple[AnyTrainingText, ...]
    """Training texts. `*` and `?` in a path make a text of each match, in sorted order."""
    valid: Text | tuple[Bitext, ...]
    """Validation text, which selects the best checkpoint; or a list of texts, one for each
    direction, which select it by the mean of their scores."""
    test: dict[str, Bitext] = field(default_factory=dict)
    """Named test sets for `tformer eval`."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    """Filters of training pairs."""
    prefixes: dict[str, str] | None = field(default=None, metadata=LEFT_OUT_IF_NULL)
    """Text that each source begins with, instead of a tag, by target language; all of these have
    one. Of MADLAD-400 `{de: "<2de> "}`, of T5 `{de: "translate English to German: "}`."""
    sampling: SamplingConfig | None = field(default=None, metadata=LEFT_OUT_IF_NULL)
    """Temperature by which directions of little text are seen more often; null for weights
    alone."""

    @property
    def unit(self) -> str:
        """What the training text is counted in: pairs, or lines of monolingual text."""
        return "line" if isinstance(self.train[0], PlainTrainingText) else "pair"

    @property
    def line_texts(self) -> tuple[AnyTrainingText, ...]:
        """The training texts whose lines are trained on, not their phrase pairs."""
        return tuple(text for text in self.train if not has_phrases(text))

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Each pair of source and target language of the training texts, in their order."""
        return tuple(dict.fromkeys(map(self.direction_of, self.train)))

    @property
    def targets(self) -> tuple[str, ...]:
        """The target languages, of `prefixes` or of the training texts, in their order."""
        return tuple(self.prefixes or dict.fromkeys(target for _, target in self.directions))

    @property
    def has_target_tags(self) -> bool:
        """Whether each source begins with the tag of its target language."""
        has_others = self.language_marks == "tokens" or self.prefixes is not None
        return not has_others and len(self.targets) > 1

    def direction_of(self, text: Text) -> Direction:
        """Return source and target language of a text."""
        own = self.source_language, self.target_language
        if isinstance(text, PlainText):
            return own
        return text.source_language or own[0], text.target_language or own[1]

    def direction_into(self, target: str) -> Direction:
        """Return source and target language of translations into one of `targets`.

        With several source languages, the source is that of `data`.
        """
        sources = {source for source, other in self.directions if other == target}
        return sources.pop() if len(sources) == 1 else self.source_language, target

    def tags_of(self, text: Text) -> tuple[str, ...]:
        """Return the tags that each source of a text begins with.

        With several target languages and no prefixes, the first one is that of the language.
        """
        own = text.tags if isinstance(text, TrainingBitext) else ()
        if not self.has_target_tags:
            return own
        return target_token(self.direction_of(text)[1]), *own

    def prefix_of(self, text: Text) -> str:
        """Return the text that each source of a text begins with, before its tags."""
        return (self.prefixes or {}).get(self.direction_of(text)[1], "")

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags, in the order of their reserved ids: that of their first appearance."""
        return tuple(dict.fromkeys(name for text in self.train for name in self.tags_of(text)))

    @property
    def max_length(self) -> int:
        """Maximum length of either side of a training pair, with its tags and without EOS.

        A prefix has at most a token a byte, and one for the space before it.
        """
        tokens = int(self.language_marks == "tokens")
        longest = max((len(x.encode()) + 1 for x in (self.prefixes or {}).values()), default=0)
        num_tags = max((len(self.tags_of(x)) for x in self.train), default=0)
        return self.filters.max_length + tokens + longest + num_tags

    @property
    def valid_texts(self) -> dict[str, Text]:
        """The validation texts by name: `valid`, or of a list `valid.en-de` and so on."""
        if not isinstance(self.valid, tuple):
            return {"valid": self.valid}
        return {f"valid.{'-'.join(self.direction_of(text))}": text for text in self.valid}

    @property
    def first_valid_text(self) -> Text:
        """The validation text, the first one of a list."""
        return next(iter(self.valid_texts.values()))

    def texts(self) -> dict[str, Text]:
        """Return every text by key path."""
        valid: dict[str, Text] = (
            {"valid": self.valid}
            if isinstance(self.valid, Text)
            else {f"valid.{index}": text for index, text in enumerate(self.valid)}
        )
        return {
            **{f"train.{index}": text for index, text in enumerate(self.train)},
            **valid,
            **{f"test.{name}": text for name, text in self.test.items()},
        }

    @property
    def held_out(self) -> list[Text]:
        """The validation text and all test texts."""
        return [text for key, text in self.texts().items() if not key.startswith("train.")]

    def with_files(self, path_of: Callable[[Path], Path]) -> Self:
        """Return the data with another path for each text file, by `path_of`."""

        def moved(text: _Text) -> _Text:
            files: dict[str, Any] = {side: path_of(file) for side, file in text.files.items()}
            return replace(text, **files)

        return self._with_texts(moved)

    def with_languages(self) -> Self:
        """Return the data with `languages` of each file of pairs."""
        return self._with_texts(self.language_set)

    def renamed(self, source: str, target: str) -> Self:
        """Return the data of a single direction with other names for its languages.

        Of a model with prefixes, the target is one of their languages.
        """
        ((own_source, own_target),) = self.directions

        def unnamed(text: _Text) -> _Text:
            if isinstance(text, PlainText):
                return text
            names: dict[str, Any] = {}
            if text.source_language == own_source:
                names["source_language"] = None
            if text.target_language == own_target:
                names["target_language"] = None
            return replace(text, **names)

        prefixes = self.prefixes
        if prefixes is not None:
            # The first is that of the language to translate into by default.
            prefixes = {target: prefixes[target], **prefixes}
        data = replace(self, prefixes=prefixes, source_language=source, target_language=target)
        return data._with_texts(unnamed)

    def language_set(self, text: _Text) -> _Text:
        """Return a text with `languages` if it is a file of pairs without."""
        if not isinstance(text, PairsFile) or text.languages is not None:
            return text
        return replace(text, languages=self.direction_of(text))

    def _with_texts(self, changed: _Change) -> Self:
        return replace(
            self,
            train=tuple(map(changed, self.train)),
            valid=tuple(map(changed, self.valid))
            if isinstance(self.valid, tuple)
            else changed(self.valid),
            test={name: changed(text) for name, text in self.test.items()},
        )

    def conflicts(self) -> Iterator[Problem]:
        if not self.train:
            yield Problem("train", "needs at least one pair of files", "an empty list")
        elif not self.line_texts:
            what = "has phrases alone, by which no model learns to translate sentences"
            yield Problem("train", what, remedy="add the text without `extract` too")
        if len(self.tags) > MAX_TAGS:
            what = f"has more than the {MAX_TAGS} tags that a vocabulary reserves"
            yield Problem("train", what, ", ".join(self.tags), "share tags between texts")
        yield from self._conflicts_of_names()
        yield from self._conflicts_of_languages()

    def _conflicts_of_names(self) -> Iterator[Problem]:
        for name in {"valid": None, **self.valid_texts}.keys() & self.test.keys():
            yield Problem(f"test.{name}", "this name belongs to data.valid", remedy="rename it")
        names = [(f"test.{name}", name) for name in self.test]
        if isinstance(self.valid, tuple):
            names += zip(itertools.repeat("valid"), self.valid_texts, strict=False)
        for key, name in names:
            # The files below eval/ of a run have this name.
            if not name.isprintable() or os.path.basename(name) != name or name in ("", ".", ".."):
                yield Problem(
                    key,
                    "must be the name of a file, without a folder or a control character",
                    json.dumps(name),
                    "rename it",
                )

    def _conflicts_of_languages(self) -> Iterator[Problem]:
        if isinstance(self.valid, tuple) and len(self.valid_texts) < max(1, len(self.valid)):
            yield Problem(
                "valid",
                "must be a text, or a list of one text for each direction",
                ", ".join(self.valid_texts) or "an empty list",
                "give each its source_language and target_language",
            )
        if self.sampling is not None and len(self.directions) < 2:
            what = "has no effect on texts of one direction"
            yield Problem(
                "sampling", what, ", ".join(map(" -> ".join, self.directions)), "leave it out"
            )
        if self.prefixes is not None and not self.prefixes:
            what = "needs a prefix for each target language"
            yield Problem("prefixes", what, "an empty mapping", "leave it out")
        choices = ", ".join(self.targets)
        for key, text in self.texts().items():
            target = self.direction_of(text)[1]
            if self.train and target not in self.targets:
                what = "is no target language of data.train"
                yield Problem(f"{key}.target_language", what, target, f"choose from: {choices}")
        tokens = set(map(target_token, self.targets if self.has_target_tags else ()))
        for index, own in enumerate(self.train):
            for name in tokens.intersection(getattr(own, "tags", ())):
                what = "is the tag of a target language"
                yield Problem(f"train.{index}.tags", what, name, "leave it out")
