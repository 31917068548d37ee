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

from tformer_cli.text.language import base_language

_UNSPACED_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "km", "my"})
# Ranges of a character class; no letter and no mark that is part of a word.
_PUNCTUATION = r"!-/:-@\[-`{-~¡-©«-±´¶-¹»-¿‐-‧‰-⁞、-〃〈-〟！-／：-＠،؛؟।"
_WORD = rf"[^\s{_PUNCTUATION}]+(?:['’.,:-][^\s{_PUNCTUATION}]+)*"
_CHARACTER = rf"[0-9A-Za-zÀ-ɏ]+|[^\s{_PUNCTUATION}]"
_BEFORE_SENTENCE = re.compile(r"(^|[.!?…:;])\W*$")
_NUMBER = re.compile(r"\d+(?:[.,:'’\u00a0\u202f]\d+)*")
_REPEATED_LETTERS = re.compile(r"([^\W\d_]{1,8}?)\1{4}")
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
# Longest phrase, in words, whose repetition is looked for.
MAX_LOOP = 8
# An untranslated line has so many words of its source, and this share of its own words.
MIN_LEFT, MIN_LEFT_SHARE = 3, 0.5

TermKind = Literal["numbers", "names", "negations"]


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
        kind: numbers, names or negations.
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


def words(line: str, language: str) -> list[str]:
    """Return the words of a line, without punctuation."""
    return re.findall(_CHARACTER if _is_unspaced(language) else _WORD, line)


def _is_unspaced(language: str) -> bool:
    return base_language(language) in _UNSPACED_LANGUAGES


def _folded_words(line: str, language: str) -> list[str]:
    return words(line.casefold(), language)


def count_words(
    training: Iterable[str], sources: Iterable[str], language: str
) -> Mapping[str, int]:
    """Return how often the words of sources occur in training lines, whatever their case.

    The first `MAX_COUNTED` lines count.
    """
    counts = {word: 0 for line in sources for word in _folded_words(line, language)}
    for line in itertools.islice(training, MAX_COUNTED):
        for word in _folded_words(line, language):
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
        if (line_words := _folded_words(line, language))
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
    """Return what became of numbers, names and, where both languages are known, negations."""
    lines = list(zip(sources, references, hypotheses, strict=True))
    terms = [
        _compare("numbers", (tuple(map(numbers, line)) for line in lines)),
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


def numbers(line: str) -> dict[str, str]:
    """Return the numbers of a line by their digits: languages differ in separators."""
    return {
        "".join(str(int(digit)) for digit in number if digit.isdecimal()): number
        for number in _NUMBER.findall(line)
    }


def names(line: str) -> dict[str, str]:
    """Return capitalized words of two letters or more that begin no sentence."""
    matches = (
        re.search(_WORD, token)
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


def copies(
    sources: Iterable[str], references: Iterable[str], hypotheses: Iterable[str]
) -> list[Finding]:
    """Return lines that equal their source, other than those whose reference does too."""
    lines = zip(sources, references, hypotheses, strict=True)
    return [
        Finding(number)
        for number, (source, reference, hypothesis) in enumerate(lines)
        if source.strip() == hypothesis.strip() != reference.strip() and source.strip()
    ]


def empty(references: Iterable[str], hypotheses: Iterable[str]) -> list[Finding]:
    """Return lines without a translation, other than those whose reference is empty too."""
    lines = zip(references, hypotheses, strict=True)
    return [
        Finding(number)
        for number, (reference, hypothesis) in enumerate(lines)
        if reference.strip() and not hypothesis.strip()
    ]


def untranslated(
    sources: Iterable[str], references: Iterable[str], hypotheses: Iterable[str], language: str
) -> list[Finding]:
    """Return lines that consist of source words which the reference lacks, other than copies."""
    findings = []
    for number, lines in enumerate(zip(sources, references, hypotheses, strict=True)):
        source, reference, hypothesis = (_folded_words(line, language) for line in lines)
        left = [word for word in hypothesis if word in set(source) - set(reference)]
        is_copy = lines[0].strip() == lines[2].strip()
        if len(left) >= max(MIN_LEFT, MIN_LEFT_SHARE * len(hypothesis)) and not is_copy:
            findings.append(Finding(number, tuple(dict.fromkeys(left))))
    return findings


def loops(references: Iterable[str], hypotheses: Iterable[str], language: str) -> list[Finding]:
    """Return lines that repeat a phrase at once, other than those whose reference does too.

    A single word has to stand three times in succession, and letters in a word five times.
    """
    return [
        Finding(number, (phrase,))
        for number, (reference, hypothesis) in enumerate(zip(references, hypotheses, strict=True))
        if (phrase := _repeated(hypothesis, language)) and not _repeated(reference, language)
    ]


def _repeated(text: str, language: str) -> str:
    """Return the shortest phrase, or else the letters, that a text repeats at once."""
    line = _folded_words(text, language)
    for length in range(1, MAX_LOOP + 1):
        num_equal = 0
        for position in range(length, len(line)):
            is_equal = line[position] == line[position - length]
            num_equal = num_equal + 1 if is_equal else 0
            if num_equal == max(length, 2):
                phrase = line[position - length + 1 : position + 1]
                return ("" if _is_unspaced(language) else " ").join(phrase)
    letters = _REPEATED_LETTERS.search(text)
    return letters[1] if letters else ""


def mark_differences(one: str, other: str, language: str) -> tuple[list[str], list[str]]:
    """Return both texts in segments that are in turn equal and different; the first may be empty.

    Whole words differ, or single characters in a language without spaces.
    """
    unit = _CHARACTER if _is_unspaced(language) else _WORD
    pieces = [re.findall(rf"\s+|[{_PUNCTUATION}]+|{unit}", text) for text in (one, other)]
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
