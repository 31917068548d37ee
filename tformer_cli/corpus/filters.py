"""Filters of pairs: named rules on lengths and on text, and the number of pairs they drop."""

import functools
import itertools
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, NamedTuple

import numpy as np

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.config.schema.text import Direction, Text
from tformer_cli.corpus.line_keys import EMPTY_KEY, line_key
from tformer_cli.corpus.reader import read_rows
from tformer_cli.errors import UsageError, quantity
from tformer_cli.extras import package
from tformer_cli.text.defects import copied_share, foreign_share, lost_numbers
from tformer_cli.text.language import base_language

Row = tuple[str, ...]

# What `FilterReport` counts, in words, in the order of the rules.
REASONS = {
    "empty": "empty",
    "too_long": "too long",
    "ratio": "of unequal length",
    "letters": "with few letters",
    "markup": "with markup",
    "repeats": "with repeated characters",
    "script": "in another script",
    "copied": "copied",
    "numbers": "with other numbers",
    "held_out": "held out",
    "language": "in another language",
    "duplicate": "duplicate",
    "similar": "near-duplicate",
}
KEPT = "kept"
# What `tformer clean` begins with.
CLEANING = FilterConfig(
    max_length=200,
    max_ratio=3.0,
    min_letters=0.5,
    max_markup=0,
    max_repeats=4,
    max_other_script=0.1,
    max_copied=0.5,
    max_other_numbers=0,
    drop_held_out=True,
    drop_duplicates=True,
    max_similarity=0.8,
)

_MARKUP = re.compile(
    r"(?P<tag></?[A-Za-z][\w:-]*)(?:\s[^<>]*)?/?>|<!--|&(?:[A-Za-z]\w{1,9}|#\w{1,6});"
)


@dataclass(slots=True)
class FilterReport:
    """Number of pairs kept, and of pairs dropped by the first rule that they break."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    letters: int = 0
    markup: int = 0
    repeats: int = 0
    script: int = 0
    copied: int = 0
    numbers: int = 0
    held_out: int = 0
    language: int = 0
    duplicate: int = 0
    similar: int = 0

    @classmethod
    def of(cls, reasons: Iterable[str]) -> "FilterReport":
        """Return the counts of reasons, `KEPT` among them."""
        return cls(**Counter(reasons))

    @property
    def seen(self) -> int:
        """All pairs, kept or not."""
        return sum(astuple(self))

    @property
    def dropped(self) -> dict[str, int]:
        """The numbers of pairs dropped, by reason."""
        return {reason: count for reason, count in asdict(self).items() if count and reason != KEPT}

    def __add__(self, other: "FilterReport") -> "FilterReport":
        return FilterReport(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return self.describe()

    def describe(self, noun: str = "pair") -> str:
        """Return the counts in words; `noun` is what is counted: pairs or lines."""
        dropped = ", ".join(f"{count:,} {REASONS[name]}" for name, count in self.dropped.items())
        kept = f"{quantity(self.seen, noun)}: {self.kept:,} kept"
        return f"{kept}; dropped {dropped}" if dropped else kept


def length_reasons(config: FilterConfig, *lengths: np.ndarray) -> np.ndarray:
    """Return (n,) `KEPT`, or the first rule on lengths that each pair breaks.

    `lengths` has (n,) lengths of the sources, and of the targets if any: tokens without special
    ones, or words.
    """
    shorter, longer = np.min(lengths, axis=0), np.max(lengths, axis=0)
    max_ratio = np.inf if config.max_ratio is None else config.max_ratio
    is_unequal = longer > max_ratio * np.maximum(shorter, 1)
    rules = {"empty": shorter == 0, "too_long": longer > config.max_length, "ratio": is_unequal}
    return np.select(list(rules.values()), list(rules), KEPT)


class Rule(NamedTuple):
    """A rule on text: its key in `FilterConfig`, and whether a pair breaks it."""

    key: str
    is_broken: Callable[["PairFilter", Row, Any], bool]


@dataclass(frozen=True, slots=True)
class PairFilter:
    """The rules of a config for pairs of some languages.

    Attributes:
        config: thresholds.
        languages: of source and target.
        held_out: hashes of the lines that no side may be (`line_key`).
        direction: number of these languages among those of all texts.
    """

    config: FilterConfig
    languages: Direction
    held_out: frozenset[int] = frozenset()
    direction: int = 0

    @classmethod
    def of_texts(
        cls,
        config: FilterConfig,
        directions: Sequence[Direction],
        held_out: Iterable[Text],
        *,
        named_by: str = "data.source_language and data.target_language",
    ) -> "list[PairFilter]":
        """Return the filter of each text, by its source and target language.

        No side of a pair may be a line of the `held_out` texts. `named_by` says in a message what
        names the languages.

        Raises:
            UsageError: a language cannot be identified, or py3langid is not installed.
        """
        if config.min_language is not None:
            for code in dict.fromkeys(itertools.chain.from_iterable(directions)):
                if base_language(code) not in _identifier().labels:
                    where = "data.filters.min_language"
                    what = "needs languages that py3langid knows"
                    remedy = f"set {named_by}, or set it to null"
                    raise UsageError(where, what, got=code, remedy=remedy)
        texts = held_out if config.drop_held_out else ()
        keys = {line_key(line) for text in texts for row in read_rows(text) for line in row}
        lines = frozenset(keys - {EMPTY_KEY})
        numbers = list(dict.fromkeys(directions))
        return [cls(config, each, lines, numbers.index(each)) for each in directions]

    def reasons(self, rows: Iterable[Row]) -> list[str]:
        """Return `KEPT` for each row, or the first of `RULES` that it breaks.

        A row with an empty side is kept: the rules on lengths drop it.
        """
        active = [
            (reason, rule.is_broken, threshold)
            for reason, rule in RULES.items()
            if (threshold := getattr(self.config, rule.key)) is not None and threshold is not False
        ]
        return [
            next(
                (reason for reason, is_broken, limit in active if is_broken(self, row, limit)), KEPT
            )
            if all(map(str.strip, row))
            else KEPT
            for row in rows
        ]


def _has_few_letters(_: PairFilter, row: Row, min_share: float) -> bool:
    return any(_letter_share(line) < min_share for line in row)


def _letter_share(line: str) -> float:
    visible = "".join(line.split())
    num_letters = sum(map(str.isalpha, visible))
    if not visible.isascii():
        # Vowels of many scripts are marks.
        num_letters += sum(unicodedata.category(character)[0] == "M" for character in visible)
    return num_letters / len(visible)


def _has_markup(_: PairFilter, row: Row, max_count: int) -> bool:
    """Return whether markup has no counterpart in the other side; attributes may differ."""
    counts = [Counter(match["tag"] or match[0] for match in _MARKUP.finditer(side)) for side in row]
    shared = functools.reduce(operator.and_, counts) if len(counts) > 1 else Counter[str]()
    return sum((count - shared).total() for count in counts) > max_count


def _has_repeats(_: PairFilter, row: Row, max_count: int) -> bool:
    pattern = rf"([^\s\d])\1{{{max_count}}}"
    return any(re.search(pattern, line) for line in row)


def _is_in_other_script(rules: PairFilter, row: Row, max_share: float) -> bool:
    sides = zip(row, rules.languages, strict=False)
    return any(foreign_share(line, language) > max_share for line, language in sides)


def _is_copied(rules: PairFilter, row: Row, max_share: float) -> bool:
    """Return whether too much of a target is its source; not within a language, as corrections."""
    source, target = row
    if len(set(map(base_language, rules.languages))) == 1:
        return False
    return copied_share(source, target, rules.languages) > max_share


def _has_other_numbers(_: PairFilter, row: Row, max_count: int) -> bool:
    source, target = row
    return len(lost_numbers(source, target)) + len(lost_numbers(target, source)) > max_count


def _is_held_out(rules: PairFilter, row: Row, _: bool) -> bool:
    return not rules.held_out.isdisjoint(map(line_key, row))


def _is_in_other_language(rules: PairFilter, row: Row, min_probability: float) -> bool:
    sides = zip(row, rules.languages, strict=False)
    return any(_probability(line, language) < min_probability for line, language in sides)


# Rules on text in order, cheap ones first.
RULES: Mapping[str, Rule] = {
    "letters": Rule("min_letters", _has_few_letters),
    "markup": Rule("max_markup", _has_markup),
    "repeats": Rule("max_repeats", _has_repeats),
    "script": Rule("max_other_script", _is_in_other_script),
    "copied": Rule("max_copied", _is_copied),
    "numbers": Rule("max_other_numbers", _has_other_numbers),
    "held_out": Rule("drop_held_out", _is_held_out),
    "language": Rule("min_language", _is_in_other_language),
}


def _probability(line: str, language: str) -> float:
    """Return the probability that a line is in a language."""
    return float(dict(_identifier().rank(line))[base_language(language)])


@functools.cache
def _identifier() -> Any:
    """Return the identifier of languages, whose probabilities are calibrated for any length."""
    langid = package("py3langid", "langid").langid
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
