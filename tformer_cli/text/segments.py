"""A long text, cut where a reader would pause."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

# Quotation marks and brackets that may stand between a mark and the blank after it.
_CLOSING = "[\"'”’“»›)\\]}」』）】》〉]*+"
# From the best place to the least good one. The scripts that write without blanks need none after
# their marks; a run of such marks stays together.
_PAUSES = (
    re.compile(rf"(?<=[.!?…؟۔।]){_CLOSING}\s+|(?<=[。！？｡]){_CLOSING}(?![。！？｡])\s*"),
    re.compile(rf"(?<=[;:؛]){_CLOSING}\s+|(?<=[；：])\s*"),
    re.compile(rf"(?<=[,،]){_CLOSING}\s+|(?<=[，、､])\s*"),
    re.compile(r"\s+"),
)
_JOINER = "\u200d"

# Languages that put no blanks between sentences, by the first part of their tag.
_WITHOUT_BLANKS = frozenset({"zh", "yue", "wuu", "ja", "th", "lo", "km", "my", "bo", "dz"})


def segments(text: str, max_tokens: int, count_tokens: Callable[[str], int]) -> list[str]:
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
    """
    pauses = [[found.end() for found in pause.finditer(text)] for pause in _PAUSES]

    def fits(start: int, end: int) -> bool:
        return count_tokens(text[start:end]) <= max_tokens

    pieces = []
    start, reach = 0, max_tokens
    while start < len(text):
        limit = end = _furthest(start, len(text), reach, fits)
        if limit < len(text):
            # A shorter stretch may have more tokens than a longer one, so it is counted again.
            good = _good_ends(text, pauses, start, limit)
            end = next((place for place in good if fits(start, place)), limit)
        pieces.append(text[start:end])
        start, reach = end, limit - start
    return pieces


def beginning(text: str, max_tokens: int, count_tokens: Callable[[str], int]) -> str:
    """Return as much of a text as has at most `max_tokens` tokens, or its first character.

    Args:
        text: what is cut off.
        max_tokens: of what is left.
        count_tokens: says how many tokens a stretch of text becomes.
    """

    def fits(start: int, end: int) -> bool:
        return count_tokens(text[start:end]) <= max_tokens

    return text[: _furthest(0, len(text), max_tokens, fits)]


def blank_between(language: str) -> str:
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
