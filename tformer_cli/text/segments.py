"""A long text, cut where a reader would pause."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

# Quotation marks and brackets that may stand between a mark and the blank after it.
_CLOSING = "[\"'”’“»›)\\]}」』）】》〉]*+"
# The scripts that write without blanks need none after their marks; a run of such marks stays
# together.
_SENTENCE_ENDS = re.compile(
    rf"(?<=[.!?…؟۔।]){_CLOSING}\s+|(?<=[。！？｡]){_CLOSING}(?![。！？｡])\s*"
)
# Initials (but for "I", which ends sentences), ordinal numbers, what has periods within, and titles
# that stand before names. Among the last characters before a blank, for none is longer.
_ABBREVIATION = re.compile(
    r"(?<![\w.])(?:(?!I\.)[^\W\d_]|\d\d?|(?:[^\W\d_]\.)+[^\W\d_]|"
    r"M(?:rs?|s|me|lle|t)|[DJSH]r|Dra|Sra?|St|Prof|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Sen|Rep|Gov|Nr|vs)\.$"
)
_LONGEST_ABBREVIATION = 12
# From the best place to the least good one.
_LESSER_PAUSES = (
    re.compile(rf"(?<=[;:؛]){_CLOSING}\s+|(?<=[；：])\s*"),
    re.compile(rf"(?<=[,،]){_CLOSING}\s+|(?<=[，、､])\s*"),
    re.compile(r"\s+"),
)
_JOINER = "\u200d"

# Languages that put no blanks between sentences, by the first part of their tag.
_WITHOUT_BLANKS = frozenset({"zh", "yue", "wuu", "ja", "th", "lo", "km", "my", "bo", "dz"})


def segment_text(
    text: str,
    max_tokens: int,
    count_tokens: Callable[[str], int],
    *,
    max_sentences: int | None = None,
) -> list[str]:
    """Cut a text into pieces of at most `max_tokens` tokens, each as long as may be.

    A piece ends after the last sentence that still fits; where none fits, at a semicolon or colon,
    else at a comma, else at a blank, else between any two characters. Blanks belong to the piece
    that they follow, so the pieces in a row are the text. A single character that has more tokens
    is a piece nevertheless.

    Time is linear in the text: whatever it is, no stretch is counted much longer than a piece.

    Args:
        text: what to cut.
        max_tokens: of a piece.
        count_tokens: says how many tokens a stretch of text becomes.
        max_sentences: of a piece; None sets no limit.
    """
    sentences = sentence_ends(text)
    lesser = ([found.end() for found in pause.finditer(text)] for pause in _LESSER_PAUSES)
    pauses = [sentences, *lesser]

    def fits(start: int, end: int) -> bool:
        return count_tokens(text[start:end]) <= max_tokens

    pieces = []
    start, reach = 0, max_tokens
    while start < len(text):
        last = len(text)
        if max_sentences is not None:
            beyond = bisect_right(sentences, start) + max_sentences
            last = sentences[min(beyond, len(sentences)) - 1]
        limit = end = _furthest(start, last, reach, fits)
        if limit < last:
            # A shorter stretch may have more tokens than a longer one, so it is counted again.
            good = _good_ends(text, pauses, start, limit)
            end = next((place for place in good if fits(start, place)), limit)
        pieces.append(text[start:end])
        start, reach = end, limit - start
    return pieces


def sentence_ends(text: str) -> list[int]:
    """Return where each sentence of a text ends, behind the blanks that follow it.

    A period after an abbreviation ends none. Nor does a mark before a small letter, unless the
    text has small letters alone. The last sentence ends with the text.
    """
    has_capitals = text != text.lower()
    ends = []
    for found in _SENTENCE_ENDS.finditer(text):
        start, end = found.span()
        if end == len(text) or (has_capitals and text[end].islower()):
            continue
        if not _ABBREVIATION.search(text[max(0, start - _LONGEST_ABBREVIATION) : start]):
            ends.append(end)
    return [*ends, len(text)] if text else []


def truncate_text(text: str, max_tokens: int, count_tokens: Callable[[str], int]) -> str:
    """Return as much of a text as has at most `max_tokens` tokens, or its first character.

    Args:
        text: what is cut off.
        max_tokens: of what is left.
        count_tokens: says how many tokens a stretch of text becomes.
    """

    def fits(start: int, end: int) -> bool:
        return count_tokens(text[start:end]) <= max_tokens

    return text[: _furthest(0, len(text), max_tokens, fits)]


def word_separator(language: str) -> str:
    """Return what stands between two sentences of a language: a blank, or nothing.

    Args:
        language: a tag such as `en`, `zh` or `zh-Hant`.
    """
    main = language.lower().replace("_", "-").split("-")[0]
    return "" if main in _WITHOUT_BLANKS else " "


def _furthest(start: int, length: int, reach: int, fits: Callable[[int, int], bool]) -> int:
    """Return an end that fits while the next one does not; `start + 1` where nothing fits.

    Args:
        start: where the piece begins.
        length: of the whole text.
        reach: a guess of its characters; from there on twice as many at a time are tried.
        fits: whether a piece may begin and end at two places.
    """
    low, high = start + 1, min(start + reach, length)
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


def _good_ends(text: str, pauses: Sequence[Sequence[int]], start: int, limit: int) -> Iterator[int]:
    """Yield where a piece had better end than at `limit`, the best place first."""
    for ends in pauses:
        place = bisect_right(ends, limit) - 1
        if place >= 0 and ends[place] > start:
            yield ends[place]
    whole = limit
    while whole > start and _continues(text, whole):
        whole -= 1
    if whole > start:
        yield whole


def _continues(text: str, place: int) -> bool:
    """Say whether the code point at a place belongs to the character before it."""
    is_mark = unicodedata.category(text[place]).startswith("M")
    return is_mark or _JOINER in text[place - 1 : place + 1]
