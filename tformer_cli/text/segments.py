"""A line of text in segments, sentences, words and terms."""

import codecs
import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from tformer_cli.errors import DataError, check_utf8, reject_str
from tformer_cli.text.language import base_language
from tformer_cli.text.special_tokens import NUM_SPECIAL
from tformer_cli.text.tokenizer import Tokenizer

# Quotation marks and brackets between a punctuation mark and the whitespace after it.
_CLOSING = "[\"'”’“»›)\\]}」』）】》〉]*+"
# Scripts without whitespace need none after the mark; a run of their marks stays together.
# Marks of Latin, Arabic, Urdu, Devanagari, Armenian, Ethiopic, Burmese, Khmer and Han.
_SENTENCE_ENDS = re.compile(
    rf"(?<=[.!?…؟۔।॥։።፧။។]){_CLOSING}\s+|(?<=[。！？｡]){_CLOSING}(?![。！？｡])\s*"
)
# Initials (except "I", which ends sentences), ordinals, abbreviations with inner periods, titles.
_ABBREVIATION = re.compile(
    r"(?<![\w.])(?:(?!I\.)[^\W\d_]|\d\d?|(?:[^\W\d_]\.)+[^\W\d_]|"
    r"M(?:rs?|s|me|lle|t)|[DJSH]r|Dra|Sra?|St|Prof|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Sen|Rep|Gov|Nr|vs)\.$"
)
_MAX_ABBREVIATION_LENGTH = 12
# Where to split within a sentence, best first: semicolons and colons, commas, whitespace.
_PAUSES = (
    re.compile(rf"(?<=[;:؛]){_CLOSING}\s+|(?<=[；：])\s*"),
    re.compile(rf"(?<=[,،]){_CLOSING}\s+|(?<=[，、､])\s*"),
    re.compile(r"\s+"),
)
_JOINER = "\u200d"
# Letters that end the character before them (Unicode, UAX 29): Thai and Lao am, half-width voicing.
_ENDINGS = "\u0e33\u0eb3\uff9e\uff9f"
# Characters between a part of a text and the next, at most: so a part that is missing hides few.
MAX_GAP = 16

# Ranges of a character class; no letter and no mark that is part of a word.
PUNCTUATION = (
    r"!-/:-@\[-`{-~¡-©«-±´¶-¹»-¿‐-‧‰-⁞、-〃〈-〟・！-／：-＠［-｀｛-･"
    r"։׃،؛؟۔।॥๚๛།-༑၊။፡-፨។-៖"
)
WORD = rf"[^\s{PUNCTUATION}]+(?:['’.,:-][^\s{PUNCTUATION}]+)*"
_CHARACTER = rf"[0-9A-Za-zÀ-ɏ]+|[^\s{PUNCTUATION}]"

# Languages that separate neither words nor sentences by whitespace.
_WITHOUT_WHITESPACE = frozenset({"zh", "yue", "wuu", "ja", "th", "lo", "km", "my", "bo", "dz"})


def segment_text(
    text: str,
    max_tokens: int,
    count_tokens: Callable[[str], int],
    *,
    max_sentences: int | None = None,
) -> list[str]:
    """Split a text into the longest segments of at most `max_tokens` tokens and `max_sentences`.

    A segment ends after a sentence if one fits, else after a semicolon or colon, else after a
    comma, else after whitespace, else between any two characters. Whitespace belongs to the
    segment before it, so the concatenated segments are the text. A single character with more
    tokens is a segment.

    Time is linear in the text: no stretch much longer than a segment is counted.
    """
    sentences = sentence_ends(text)
    pauses = [sentences, *([match.end() for match in p.finditer(text)] for p in _PAUSES)]

    def fits(start: int, end: int) -> bool:
        return count_tokens(text[start:end]) <= max_tokens

    segments = []
    start, guess = 0, max_tokens
    while start < len(text):
        last = len(text)
        if max_sentences is not None:
            beyond = bisect_right(sentences, start) + max_sentences
            last = sentences[min(beyond, len(sentences)) - 1]
        limit = end = _longest_fitting_end(start, last, guess, fits)
        if limit < last:
            # A shorter stretch can have more tokens than a longer one, so it is counted again.
            candidates = _ends_at_pauses(text, pauses, start, limit)
            end = next((candidate for candidate in candidates if fits(start, candidate)), limit)
        segments.append(text[start:end])
        start, guess = end, limit - start
    return segments


def sentence_ends(text: str) -> list[int]:
    """Return the end of each sentence, whitespace after it included; the last one is len(text).

    A period after an abbreviation does not end a sentence. A mark before a lowercase letter does
    so only in an all-lowercase text.
    """
    has_capitals = text != text.lower()
    ends = []
    for match in _SENTENCE_ENDS.finditer(text):
        start, end = match.span()
        if end == len(text) or (has_capitals and text[end].islower()):
            continue
        if not _ABBREVIATION.search(text[max(0, start - _MAX_ABBREVIATION_LENGTH) : start]):
            ends.append(end)
    return [*ends, len(text)] if text else []


def truncate_text(text: str, max_tokens: int, count_tokens: Callable[[str], int]) -> str:
    """Return the longest start of a text with at most `max_tokens` tokens, or one character."""

    def fits(start: int, end: int) -> bool:
        return count_tokens(text[start:end]) <= max_tokens

    return text[: _longest_fitting_end(0, len(text), max_tokens, fits)]


def word_separator(language: str) -> str:
    """Return the separator of words and sentences in a language such as `zh-Hant`, or nothing."""
    return "" if base_language(language) in _WITHOUT_WHITESPACE else " "


def word_pattern(language: str) -> str:
    """Return the regular expression of a word; without whitespace between words, a character."""
    return WORD if word_separator(language) else _CHARACTER


def words(line: str, language: str) -> list[str]:
    """Return the words of a line, without punctuation."""
    return re.findall(word_pattern(language), line)


def word_spans(line: str, language: str) -> list[tuple[int, int]]:
    """Return the start and the end of each word of a line; a character has its marks."""
    spans: list[tuple[int, int]] = []
    for match in re.finditer(word_pattern(language), line):
        start, end = match.span()
        if spans and spans[-1][1] == start and _continues_character(line, start):
            start, _ = spans.pop()
        spans.append((start, end))
    return spans


def num_words(line: str, language: str) -> float:
    """Return the number of words of a line; without whitespace, two characters count as one."""
    return len(words(line, language)) / (1 if word_separator(language) else 2)


def folded_words(line: str, language: str) -> list[str]:
    """Return the words of a line, whatever their case."""
    return words(line.casefold(), language)


def word_indices(token_bytes: Sequence[bytes]) -> list[int | None]:
    """Return the index of each token's word; None for a token of whitespace, or without text.

    Words are separated by ASCII whitespace, as in command-line tools. A token of several words
    belongs to the first; a character may span several tokens.
    """
    indices: list[int | None] = []
    num_words, is_inside = 0, False
    for token in token_bytes:
        words = token.split()
        continues = is_inside and bool(words) and not token[:1].isspace()
        indices.append(num_words - continues if words else None)
        num_words += len(words) - continues
        if token:
            is_inside = not token[-1:].isspace()
    return indices


def first_word_indices(segments: Sequence[str]) -> list[int]:
    """Return the index of the word in which each segment begins; meaningless for whitespace."""
    return [index or 0 for index in word_indices([segment.encode() for segment in segments])]


def unit_indices(
    tokenizer: Tokenizer,
    segments: Sequence[Sequence[int]],
    first_words: Sequence[int],
    separator: str,
) -> list[int | None]:
    """Return the index of each token's alignment unit: its word, or without separator the token.

    `first_words` is the index of the word in which each segment of ids begins.
    """
    if not separator:
        return list(range(sum(len(ids) for ids in segments)))
    indices: list[int | None] = []
    for ids, first in zip(segments, first_words, strict=True):
        own = word_indices(tokenizer.to_bytes(ids))
        indices += [None if index is None else first + index for index in own]
    return indices


def unit_texts(
    tokenizer: Tokenizer, ids: Sequence[int], units: Sequence[int | None]
) -> tuple[str, ...]:
    """Return the text of each alignment unit, by the unit of each token from `unit_indices`.

    Unknown tokens have no text; a character of several units belongs to the last one.
    """
    contents: dict[int, bytes] = defaultdict(bytes)
    for token, content, unit in zip(ids, tokenizer.to_bytes(ids), units, strict=True):
        if unit is not None and token >= NUM_SPECIAL:
            contents[unit] += content
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    num_units = max((unit for unit in units if unit is not None), default=-1) + 1
    return tuple(decoder.decode(contents[unit]).strip() for unit in range(num_units))


def text_spans(text: str, parts: Iterable[str]) -> list[tuple[int, int]]:
    """Return the characters (start, end) of consecutive parts in a text.

    Letter case, width, composition and whitespace, which a tokenizer may have changed, do not
    count. The span of a part that is not found is empty.
    """
    characters = [(form, index) for index, one in enumerate(text) for form in _folded(one)]
    forms = "".join(form for form, _ in characters)
    spans, end = [], 0
    for part in parts:
        wanted = _folded(part)
        start = forms.find(wanted, end, end + len(wanted) + MAX_GAP) if wanted else -1
        if start < 0:
            spans.append((0, 0))
            continue
        end = start + len(wanted)
        spans.append((characters[start][1], characters[end - 1][1] + 1))
    return spans


def _folded(text: str) -> str:
    # Decomposed, since a text is folded character by character and a part as a whole.
    return "".join(unicodedata.normalize("NFKD", text).casefold().split())


def aligned_units(
    links: Sequence[int | None], source: Sequence[int | None], target: Sequence[int | None]
) -> tuple[tuple[int, int], ...]:
    """Return the aligned pairs of source and target units, sorted.

    `links` is the source token of each target token, or None; `source` and `target` are the units
    of all tokens. A whitespace-only source token is attributed to the following word;
    whitespace-only target tokens are ignored.
    """
    units = list(source)
    for index in reversed(range(len(units) - 1)):
        if units[index] is None:
            units[index] = units[index + 1]
    pairs = set()
    for link, target_unit in zip(links, target, strict=True):
        source_unit = None if link is None else units[link]
        if source_unit is not None and target_unit is not None:
            pairs.add((source_unit, target_unit))
    return tuple(sorted(pairs))


def pharaoh(pairs: Sequence[tuple[int, int]]) -> str:
    """Return an alignment in Pharaoh format, such as `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in pairs)


class Terminology:
    """Source terms with their required translations."""

    def __init__(self, lines: Iterable[str], name: str, *, source_language: str) -> None:
        """Parse lines of a source term, a tab and a target term in the file `name`.

        Terms match whole words only, if the source language separates words.

        Raises:
            DataError: a line is something else, or gives a term a second translation.
            UsageError: a line is not UTF-8, or a text stands for the lines.
        """
        reject_str(lines=lines)
        self.targets: dict[str, str] = {}
        self._whole_words = word_separator(source_language) != ""
        line_numbers: dict[str, int] = {}
        for number, line in enumerate(lines, start=1):
            check_utf8(f"{name}:{number}", line)
            if not line.strip():
                continue
            parts = [part.strip() for part in line.split("\t")]
            if len(parts) != 2 or not all(parts):
                raise DataError(
                    f"{name}:{number}",
                    "must be a source term, a tab and a target term",
                    got=repr(line),
                )
            source, target = parts
            if self.targets.setdefault(source, target) != target:
                raise DataError(
                    f"{name}:{number}",
                    f"has another translation than line {line_numbers[source]}",
                    got=f"{target!r} for {source!r}",
                    remedy="keep one of the two",
                )
            line_numbers.setdefault(source, number)
        self._lengths = sorted({len(term) for term in self.targets}, reverse=True)

    def target_terms(self, line: str) -> list[str]:
        """Return the target terms of a line, each once, in the order of their source terms.

        Of overlapping terms the longest counts, of equally long ones the first. Matching is
        case-sensitive.
        """
        is_covered = [False] * len(line)
        matches = []
        for length in self._lengths:
            for start in range(len(line) - length + 1):
                end = start + length
                term = line[start:end]
                if term not in self.targets or any(is_covered[start:end]):
                    continue
                if self._whole_words and any(_is_within_word(line, i) for i in (start, end)):
                    continue
                is_covered[start:end] = [True] * length
                matches.append((start, self.targets[term]))
        return list(dict.fromkeys(target for _, target in sorted(matches)))


def _longest_fitting_end(
    start: int, length: int, guess: int, fits: Callable[[int, int], bool]
) -> int:
    """Return an end that fits while the next one does not, by bisection; at least `start + 1`.

    The search begins with a segment of `guess` characters, which is doubled while it fits.
    """
    low, high = start + 1, min(start + guess, length)
    while fits(start, high):
        if high == length:
            return length
        low, high = high, min(start + 2 * (high - start), length)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(start, middle):
            low = middle
        else:
            high = middle
    return low


def _ends_at_pauses(
    text: str, pauses: Sequence[Sequence[int]], start: int, limit: int
) -> Iterator[int]:
    """Yield better ends of a segment than `limit`, the best first."""
    for ends in pauses:
        index = bisect_right(ends, limit) - 1
        if index >= 0 and ends[index] > start:
            yield ends[index]
    end = limit
    while end > start and _continues_character(text, end):
        end -= 1
    if end > start:
        yield end


def _continues_character(text: str, index: int) -> bool:
    is_mark = unicodedata.category(text[index]).startswith("M") or text[index] in _ENDINGS
    return is_mark or _JOINER in text[index - 1 : index + 1]


def _is_within_word(line: str, index: int) -> bool:
    return 0 < index < len(line) and all(map(_is_word_character, line[index - 1 : index + 1]))


def _is_word_character(character: str) -> bool:
    # Vowel signs of many scripts are marks, not letters.
    return character.isalnum() or unicodedata.category(character)[0] == "M" or character == "_"
