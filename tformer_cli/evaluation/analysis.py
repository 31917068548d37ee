"""What is right and wrong in translations: pure functions over lists of lines.

Lines are numbered from 0. Words are what spaces and punctuation separate; in a language without
spaces each character is one.
"""

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from tformer_cli.text.defects import TEXT_DEFECTS, numbers, text_defects
from tformer_cli.text.language import base_language
from tformer_cli.text.segments import PUNCTUATION, WORD, folded_words, word_pattern, words
from tformer_cli.text.spans import addresses, placeholders

_BEFORE_SENTENCE = re.compile(r"(^|[.!?…:;])\W*$")
_NEGATIONS = {
    "en": r"no|not|never|none|nobody|nothing|nowhere|neither|nor|cannot|\w+n['’]t",
    "de": r"nichts?|nie|niemals|niemand(?:e[mn]|es)?|nirgend(?:s|wo)|kein(?:e[mnrs]?)?|weder",
    "fr": r"ne|n['’]\w+|pas|jamais|rien|aucune?|nul(?:le)?|ni|non",
    "es": r"no|nunca|jamás|nada|nadie|ning[uú]n(?:[oa]s?)?|ni|tampoco",
    "it": r"non?|mai|niente|nulla|nessun(?:[oa]|['’]\w+)?|né|neanche|nemmeno|neppure",
    "nl": r"niets?|nooit|niemand|nergens|geen|noch",
    "pt": r"não|nunca|jamais|nada|ninguém|nenhum(?:as?)?|nenhuns|nem|tampouco",
    "ru": r"нет?|ни|никогда|никто|никого|никому|ничто|ничего|ничему|нигде|никак\w*|нельзя",
}

# Smallest value of each bucket.
LENGTH_STARTS = (0, 1, 6, 11, 16, 21, 31, 51)
FREQUENCY_STARTS = (0, 1, 10, 100, 1_000, 10_000)
# Lines of a training text whose words are counted, which takes half a minute.
MAX_COUNTED = 1_000_000
TermKind = Literal["numbers", "addresses", "placeholders", "names", "negations"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Lines that are alike in something, such as their length."""

    name: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that stands out, with the words that it stands out by, if any."""

    line: int
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """What became of the terms of a kind that source and reference both have.

    Attributes:
        kind: numbers, addresses, placeholders, names or negations.
        num_kept: those that the hypothesis has too.
        lost: lines with those that it lacks.
        added: lines with terms of the hypothesis that neither source nor reference has.
    """

    kind: TermKind
    num_kept: int
    lost: tuple[Finding, ...]
    added: tuple[Finding, ...]

    @property
    def num_lost(self) -> int:
        """Number of terms that were lost."""
        return sum(len(finding.words) for finding in self.lost)


def count_words(
    training: Iterable[str], sources: Iterable[str], language: str
) -> Mapping[str, int]:
    """Return how often the words of sources occur in training lines, whatever their case.

    The first `MAX_COUNTED` lines count.
    """
    counts = {word: 0 for line in sources for word in folded_words(line, language)}
    for line in itertools.islice(training, MAX_COUNTED):
        for word in folded_words(line, language):
            if word in counts:
                counts[word] += 1
    return counts


def length_buckets(lines: Iterable[str], language: str) -> list[Bucket]:
    """Return lines by their number of words; buckets without a line are left out."""
    lengths = {number: len(words(line, language)) for number, line in enumerate(lines)}
    return _buckets(lengths, LENGTH_STARTS)


def frequency_buckets(
    sources: Iterable[str], counts: Mapping[str, int], language: str
) -> list[Bucket]:
    """Return lines by how often the rarest of their words occurs in the training text.

    Lines without words are in no bucket.
    """
    rarest = {
        number: min(counts[word] for word in line_words)
        for number, line in enumerate(sources)
        if (line_words := folded_words(line, language))
    }
    return _buckets(rarest, FREQUENCY_STARTS)


def _buckets(values: Mapping[int, int], starts: Sequence[int]) -> list[Bucket]:
    members: dict[int, list[int]] = {}
    for line, value in values.items():
        members.setdefault(bisect_right(starts, value) - 1, []).append(line)
    return [Bucket(_range(starts, index), tuple(members[index])) for index in sorted(members)]


def _range(starts: Sequence[int], index: int) -> str:
    start = starts[index]
    if index + 1 == len(starts):
        return f"{start:,} or more"
    end = starts[index + 1] - 1
    return f"{start:,}" if start == end else f"{start:,} to {end:,}"


def compare_terms(
    sources: Sequence[str],
    references: Sequence[str],
    hypotheses: Sequence[str],
    source_language: str,
    target_language: str,
) -> list[Terms]:
    """Return what became of the terms of each kind; negations where both languages are known."""
    lines = list(zip(sources, references, hypotheses, strict=True))
    terms = [
        _compare("numbers", (tuple(map(numbers, line)) for line in lines)),
        _compare("addresses", (tuple(map(addresses, line)) for line in lines)),
        _compare("placeholders", (tuple(map(placeholders, line)) for line in lines)),
        _compare("names", (_names_of(*line, target_language) for line in lines)),
    ]
    source, target = base_language(source_language), base_language(target_language)
    if source in _NEGATIONS and target in _NEGATIONS:
        languages = source, target, target
        rows = (tuple(map(negation, line, languages)) for line in lines)
        terms.append(_compare("negations", rows))
    return terms


def _compare(kind: TermKind, lines: Iterable[Sequence[Mapping[str, str]]]) -> Terms:
    """Compare the terms of source, reference and hypothesis: by a key, as they are written."""
    num_kept = 0
    lost, added = [], []
    for number, (source, reference, hypothesis) in enumerate(lines):
        expected = [key for key in source if key in reference]
        missing = [source[key] for key in expected if key not in hypothesis]
        num_kept += len(expected) - len(missing)
        if missing:
            lost.append(Finding(number, tuple(missing)))
        new = [
            word for key, word in hypothesis.items() if key not in source and key not in reference
        ]
        if new:
            added.append(Finding(number, tuple(new)))
    return Terms(kind, num_kept, tuple(lost), tuple(added))


def names(line: str) -> dict[str, str]:
    """Return capitalized words of two letters or more that begin no sentence."""
    matches = (
        re.search(WORD, token)
        for before, token in itertools.pairwise(line.split())
        if not _BEFORE_SENTENCE.search(before)
    )
    candidates = [match[0] for match in matches if match]
    return {word: word for word in candidates if len(word) > 1 and word[0].isupper()}


def _names_of(
    source: str, reference: str, hypothesis: str, target_language: str
) -> list[dict[str, str]]:
    """Return the names of a source, and those of them that each target line has anywhere."""
    expected = names(source)
    targets = (set(words(line, target_language)) for line in (reference, hypothesis))
    return [expected, *({name: name for name in expected if name in each} for each in targets)]


def negation(line: str, language: str) -> dict[str, str]:
    """Return the first negating word of a line; the key is the same for all."""
    match = re.search(rf"\b(?:{_NEGATIONS[language]})\b", line, re.IGNORECASE)
    return {"negation": match[0]} if match else {}


def find_defects(
    sources: Iterable[str],
    references: Iterable[str],
    hypotheses: Iterable[str],
    source_language: str,
    target_language: str,
) -> dict[str, list[Finding]]:
    """Return the lines with each kind of `text_defects`, other than those of their references."""
    findings: dict[str, list[Finding]] = {kind: [] for kind in TEXT_DEFECTS}
    lines = zip(sources, hypotheses, references, strict=True)
    for number, line in enumerate(lines):
        for defect in text_defects(*line, languages=(source_language, target_language)):
            findings[defect.kind].append(Finding(number, defect.words))
    return findings


def mark_differences(one: str, other: str, language: str) -> tuple[list[str], list[str]]:
    """Return both texts in segments that are in turn equal and different; the first may be empty.

    Whole words differ, or single characters in a language without spaces.
    """
    unit = word_pattern(language)
    pieces = [re.findall(rf"\s+|[{PUNCTUATION}]+|{unit}", text) for text in (one, other)]
    operations = SequenceMatcher(str.isspace, pieces[0], pieces[1], autojunk=False).get_opcodes()
    segments: tuple[list[str], list[str]] = ([""], [""])
    for tag, start, end, other_start, other_end in operations:
        _extend(segments[0], "".join(pieces[0][start:end]), is_equal=tag == "equal")
        _extend(segments[1], "".join(pieces[1][other_start:other_end]), is_equal=tag == "equal")
    return segments


def _extend(segments: list[str], text: str, *, is_equal: bool) -> None:
    """Add a text to the last segment, or as a new one if that is of the other kind."""
    if text and is_equal != (len(segments) % 2 == 1):
        segments.append("")
    segments[-1] += text


def even_lines(num_lines: int, count: int) -> list[int]:
    """Return at most `count` lines at even distances."""
    count = min(count, num_lines)
    return [index * num_lines // count for index in range(count)]


def ranked(scores: Sequence[float], hypotheses: Sequence[str]) -> list[int]:
    """Return all lines, the best first; of equal ones, the longest."""
    return sorted(range(len(scores)), key=lambda line: (-scores[line], -len(hypotheses[line])))
