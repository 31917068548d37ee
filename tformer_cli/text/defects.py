"""What is wrong with a translation, by simple rules over source and translation alone."""

import functools
import re
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tformer_cli.config.schema.text import Direction
from tformer_cli.text.language import scripts_of
from tformer_cli.text.segments import folded_words, num_words, word_separator, words
from tformer_cli.text.spans import KeptSpans, find_spans

# Kinds of what is wrong with a text as a whole.
TEXT_DEFECTS = ("copies", "loops", "untranslated", "empty", "wrong script", "wrong length")

# Longest phrase, in words, whose repetition is looked for.
MAX_LOOP = 8
# An untranslated line has so many words of its source, and this share of its own words.
MIN_LEFT, MIN_LEFT_SHARE = 3, 0.5
# The longer of source and translation has at most so many words for each of the other, and so many
# more, as `num_words` counts.
MAX_LENGTH_RATIO, MAX_EXTRA_WORDS = 3, 4
# Up to here a language may write a number in words.
MAX_WRITTEN_OUT = 12

_REPEATED_LETTERS = re.compile(r"([^\W\d_]{1,8}?)\1{4}")
# First words of names of letters that belong to several scripts, such as the apostrophe U+02BC.
_SHARED = ("MODIFIER", "COMBINING")
# A number with such a character has other digits in other languages.
_MULTIPLIED = re.compile(r"\d\s?[百千万萬亿億兆]")


@dataclass(frozen=True, slots=True)
class Defect:
    """Something wrong with a translation.

    Attributes:
        kind: one of `TEXT_DEFECTS`, or `lost` or `added` and the kind of spans.
        words: what it is found by, if anything: the repeated phrase, the lost spans, ...
    """

    kind: str
    words: tuple[str, ...] = ()


def text_defects(
    source: str, translation: str, reference: str | None = None, *, languages: Direction
) -> Iterator[Defect]:
    """Yield what is wrong with a text as a whole, but not what a reference has too.

    Without a reference, a copy or an untranslated line has at least `MIN_LEFT` words that are
    neither names nor numbers, and a source that repeats itself, or has words of a script other than
    its own, allows a translation to do so.
    """
    source_language, target_language = languages
    expected = source if reference is None else reference
    if not translation.strip():
        if expected.strip():
            yield Defect("empty")
        return
    if source.strip() == translation.strip():
        is_expected = (
            len(_common_words(source, source_language)) < MIN_LEFT
            if reference is None
            else reference.strip() == translation.strip()
        )
        if not is_expected:
            yield Defect("copies")
    elif left := _left_words(source, translation, reference, languages):
        yield Defect("untranslated", left)
    phrase = repeated_phrase(translation, target_language)
    expected_language = source_language if reference is None else target_language
    if phrase and not repeated_phrase(expected, expected_language):
        yield Defect("loops", (phrase,))
    foreign = foreign_words(translation, target_language)
    if foreign and not foreign_words(expected, expected_language):
        yield Defect("wrong script", foreign)
    if _is_wrong_length(source, translation, languages) and not (
        reference and _is_wrong_length(source, reference, languages)
    ):
        yield Defect("wrong length")


def term_defects(source: str, translation: str, kept: KeptSpans) -> Iterator[Defect]:
    """Yield the spans to keep that a translation has lost or added, and the `lost_numbers`."""
    excess = {"lost": kept.lost(source, translation), "added": kept.added(source, translation)}
    for what, spans in excess.items():
        for kind in kept.kinds:
            if texts := tuple(span.text for span in spans if span.kind == kind):
                yield Defect(f"{what} {kind}", texts)
    if "numbers" not in kept.kinds and (lost := lost_numbers(source, translation)):
        yield Defect("lost numbers", lost)


def numbers(line: str) -> dict[str, str]:
    """Return the numbers of a line by their digits: languages differ in separators."""
    texts = (span.text for span in find_spans(line) if span.kind == "numbers")
    return {_digits(text): text for text in texts}


def _digits(number: str) -> str:
    return "".join(str(int(digit)) for digit in number if digit.isdecimal())


def lost_numbers(source: str, translation: str) -> tuple[str, ...]:
    """Return the numbers of a source whose digits a translation lacks.

    A number up to `MAX_WRITTEN_OUT` may be in words, if the translation has no other number
    than the source. Next to 万 and similar characters, zeros at the end do not count.
    """
    is_multiplied = _MULTIPLIED.search(f"{source}\n{translation}")

    def by_digits(line: str) -> dict[str, str]:
        return {
            (digits.rstrip("0") if is_multiplied else digits): text
            for digits, text in numbers(line).items()
        }

    expected, present = by_digits(source), by_digits(translation)
    has_others = bool(present.keys() - expected.keys())
    return tuple(
        text
        for digits, text in expected.items()
        if digits not in present and (has_others or not _is_written_out(text))
    )


def _is_written_out(number: str) -> bool:
    digits = _digits(number).lstrip("0")
    # `int` refuses thousands of digits.
    return len(digits) <= len(str(MAX_WRITTEN_OUT)) and int(digits or 0) <= MAX_WRITTEN_OUT


def repeated_phrase(text: str, language: str) -> str:
    """Return the shortest phrase, or else the letters, that a text repeats at once.

    A single word has to stand three times in succession, and letters in a word five times.
    """
    line = folded_words(text, language)
    for length in range(1, MAX_LOOP + 1):
        num_equal = 0
        for position in range(length, len(line)):
            is_equal = line[position] == line[position - length]
            num_equal = num_equal + 1 if is_equal else 0
            if num_equal == max(length, 2):
                return word_separator(language).join(line[position - length + 1 : position + 1])
    letters = _REPEATED_LETTERS.search(text)
    return letters[1] if letters else ""


def foreign_words(text: str, language: str) -> tuple[str, ...]:
    """Return the words with letters of a script in which the language is not written.

    Names and terms in Latin letters occur in all languages: they count where they make up more
    than half of the letters. A single letter does not count. Unknown languages have none.
    """
    text = _without_spans(text)
    foreign = _foreign_letters(text, language)
    if sum(map(text.count, foreign)) < 2:
        return ()
    pattern = f"[{re.escape(''.join(sorted(foreign)))}]+"
    return tuple(dict.fromkeys(re.findall(pattern, text)))


def foreign_share(text: str, language: str) -> float:
    """Return the share of a text's letters that make up its `foreign_words`, a single one too."""
    text = _without_spans(text)
    num_foreign = sum(map(text.count, _foreign_letters(text, language)))
    return num_foreign / max(1, sum(map(str.isalpha, text)))


def copied_share(source: str, translation: str, languages: Direction) -> float:
    """Return the share of a translation's words that its source has, without names and numbers.

    It is 0 if they are fewer than `MIN_LEFT`, or if neither language has spaces between words:
    Chinese and Japanese share characters.
    """
    if not any(map(word_separator, languages)):
        return 0.0
    of_source = set(_common_words(source, languages[0]))
    line = _common_words(translation, languages[0])
    num_copied = sum(word in of_source for word in line)
    return num_copied / len(line) if num_copied >= MIN_LEFT else 0.0


def _foreign_letters(text: str, language: str) -> Collection[str]:
    """Return the letters of a script in which the language is not written, as `foreign_words`."""
    scripts = scripts_of(language)
    if not scripts:
        return ()
    letters = {character for character in text if character.isalpha()}
    foreign = {letter for letter in letters if _script(letter) not in (*scripts, *_SHARED)}
    if 2 * sum(map(text.count, foreign)) <= sum(map(text.count, letters)):
        foreign = {letter for letter in foreign if _script(letter) != "LATIN"}
    return foreign


@functools.cache
def _script(letter: str) -> str:
    """Return the first word of the name of a letter, which is its script."""
    plain = unicodedata.normalize("NFKC", letter)[0]
    name = re.split("[ -]", unicodedata.name(plain, ""))[0]
    return "CJK" if name == "IDEOGRAPHIC" else name


def _without_spans(text: str) -> str:
    parts, position = [], 0
    for span in find_spans(text):
        parts.append(text[position : span.start])
        position = span.end
    return " ".join([*parts, text[position:]])


def _common_words(line: str, language: str) -> list[str]:
    """Return the words of a line that are neither numbers nor names, addresses or placeholders."""
    return [
        word.casefold()
        for word in words(_without_spans(line), language)
        if word[0].isalpha() and not word[0].isupper()
    ]


def _left_words(
    source: str, translation: str, reference: str | None, languages: Direction
) -> tuple[str, ...]:
    """Return the source words of which most of a translation consists; none if it is few."""
    if reference is None:
        if not any(map(word_separator, languages)):
            return ()  # Chinese and Japanese share characters
        left = set(_common_words(source, languages[0]))
    else:
        left = set(folded_words(source, languages[0])) - set(folded_words(reference, languages[0]))
    line = folded_words(translation, languages[0])
    kept = [word for word in line if word in left]
    is_untranslated = len(kept) >= max(MIN_LEFT, MIN_LEFT_SHARE * len(line))
    return tuple(dict.fromkeys(kept)) if is_untranslated else ()


def _is_wrong_length(source: str, translation: str, languages: Direction) -> bool:
    shorter, longer = sorted(map(num_words, (source, translation), languages))
    return longer > MAX_LENGTH_RATIO * shorter + MAX_EXTRA_WORDS
