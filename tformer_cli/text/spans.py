"""Spans of a line that its translation keeps as they are: addresses, placeholders, numbers."""

import itertools
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tformer_cli.errors import UsageError

# Each kind and what its spans look like. Where two overlap, that of the first kind counts.
PATTERNS: Mapping[str, re.Pattern[str]] = {
    "addresses": re.compile(
        r"(?:(?:https?|ftp)://|\bwww\.)[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%{}-]*[A-Za-z0-9_~/#&=%+}-]"
        # Looking behind keeps the time linear in a long word.
        r"|(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+",
    ),
    "placeholders": re.compile(
        # {name}, {0}, ${name}, {{ name }}
        r"\{\{\s*[\w.:|-]+\s*\}\}|\$?\{[\w.:!\[\]-]*\}"
        # %s, %1$s, %(n)d, %.2f
        r"|(?<![\d%])%(?:\(\w+\))?(?:\d+\$)?[-+#0]*+\d*+(?:\.\d+)?(?:hh?|ll?|[Lqjzt])?"
        r"[diouxXeEfFgGcrsa@](?![A-Za-z])"
        # <b>, </b>, <a href="...">, <br/>
        r"|</?[A-Za-z][\w:-]*(?:\s[^<>]*)?/?>",
    ),
    "numbers": re.compile(r"\d+(?:[.,:'’\u00a0\u202f]\d+)*"),
}


class Span(NamedTuple):
    """A part of a line."""

    start: int
    end: int
    kind: str
    text: str


def find_spans(line: str, patterns: Mapping[str, re.Pattern[str]] = PATTERNS) -> list[Span]:
    """Return the spans of a line in order; an earlier pattern takes precedence."""
    spans: list[Span] = []
    is_covered = bytearray(len(line))
    for kind, pattern in patterns.items():
        for match in pattern.finditer(line):
            start, end = match.span()
            if start < end and not any(is_covered[start:end]):
                is_covered[start:end] = b"\1" * (end - start)
                spans.append(Span(start, end, kind, match[0]))
    return sorted(spans)


def addresses(line: str) -> dict[str, str]:
    """Return the URLs and e-mail addresses of a line."""
    return _texts(line, "addresses")


def placeholders(line: str) -> dict[str, str]:
    """Return the placeholders and tags of a line."""
    return _texts(line, "placeholders")


def _texts(line: str, kind: str) -> dict[str, str]:
    return {span.text: span.text for span in find_spans(line) if span.kind == kind}


# Kinds that a model has seldom seen: it translates better without them.
OPAQUE = ("addresses", "placeholders")


@dataclass(frozen=True)
class KeptSpans:
    """The spans that translations keep, and which of them a translation has lost or added.

    A translation has each as often as its source. Numbers may be more: a source writes some in
    words.

    Attributes:
        kinds: of the spans.
        patterns: of all kinds, also of those that may be longer than one to keep.
    """

    kinds: tuple[str, ...]
    patterns: Mapping[str, re.Pattern[str]]

    @classmethod
    def of(cls, wanted: Sequence[str]) -> "KeptSpans":
        """Return the spans of kinds of `PATTERNS`, or of regular expressions, which come first.

        Raises:
            UsageError: something is neither.
        """
        own = {text: _compiled(text) for text in wanted if text not in PATTERNS}
        return cls(tuple(dict.fromkeys(wanted)), {**own, **PATTERNS})

    def opaque(self) -> "KeptSpans":
        """Return those of `OPAQUE` kinds."""
        return replace(self, kinds=tuple(kind for kind in self.kinds if kind in OPAQUE))

    def find(self, line: str) -> list[Span]:
        """Return the spans of a line in order."""
        return [span for span in find_spans(line, self.patterns) if span.kind in self.kinds]

    def lost(self, source: str, translation: str) -> list[Span]:
        """Return the spans of a source that its translation lacks."""
        return _excess(self.find(source), self.find(translation))

    def added(self, source: str, translation: str) -> list[Span]:
        """Return the spans of a translation that its source lacks, except numbers."""
        excess = _excess(self.find(translation), self.find(source))
        return [span for span in excess if span.kind != "numbers"]

    def pairs(self, source: str, translation: str) -> list[tuple[Span, Span]]:
        """Return the spans that both have; of several with one text, the first with the first."""
        own = defaultdict[str, deque[Span]](deque)
        for span in self.find(translation):
            own[span.text].append(span)
        return [(span, own[span.text].popleft()) for span in self.find(source) if own[span.text]]

    def is_kept(self, source: str, translation: str) -> bool:
        """Return whether nothing is lost or added."""
        return not self.lost(source, translation) and not self.added(source, translation)

    def splice(self, source: str, translation: str, separator: str) -> str | None:
        """Return a translation with its added spans cut out and the lost ones put in.

        A span goes to the end of a word, after about the same share of the text as in the source. A
        tag adjoins its neighbors as there. If the result has other spans than the source, then all
        stand between spaces, and else behind the last word. None if that fails too, which happens
        with regular expressions that look around.
        """

        def attempts() -> Iterator[str]:
            for adjoins in (True, False):
                yield _splice(self, source, translation, separator, adjoins=adjoins)
            yield _append(self, source, translation)

        return next((text for text in attempts() if self.is_kept(source, text)), None)

    def cut(self, line: str) -> str:
        """Return a line without its spans."""
        return _without(line, self.find(line))


def _compiled(pattern: str) -> re.Pattern[str]:
    if (kinds := f"{pattern}s") in PATTERNS or (kinds := f"{pattern}es") in PATTERNS:
        # As an expression, it would keep this word alone.
        remedy = f"write {kinds}, or for the word itself (?:{pattern})"
        raise UsageError("`keep`", "is no kind of spans", got=pattern, remedy=remedy)
    remedy = f"choose from: {', '.join(PATTERNS)}, or write a regular expression"
    if not pattern:
        raise UsageError("`keep`", "names no spans", got="an empty text", remedy=remedy)
    try:
        return re.compile(pattern)
    except re.error as error:
        remedy = f"{remedy} ({error})"
        raise UsageError("`keep`", "names no spans", got=pattern, remedy=remedy) from None


def _excess(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the last spans of each text that occur more often than among others."""
    left = Counter((span.kind, span.text) for span in others)
    excess = []
    for span in spans:
        left[span.kind, span.text] -= 1
        if left[span.kind, span.text] < 0:
            excess.append(span)
    return excess


def _without(text: str, spans: Sequence[Span]) -> str:
    """Return a text without some spans, and with one space where two would meet."""
    for span in sorted(set(spans), reverse=True):
        before, after = text[: span.start], text[span.end :]
        text = before + (after.lstrip() if not before or before[-1].isspace() else after)
    return text.rstrip()


def _splice(
    kept: KeptSpans, source: str, translation: str, separator: str, *, adjoins: bool
) -> str:
    text = _without(translation, kept.added(source, translation))
    lost = Counter(kept.lost(source, text))
    spans, own_spans = kept.find(source), kept.find(text)
    source_shares, shares = _shares(source, spans), _shares(text, own_spans)
    gaps = _gaps(text, own_spans, separator)
    ends = defaultdict[str, list[int]](list)
    for span in own_spans:
        ends[span.text].append(span.end)
    pieces: list[str] = []
    # The pieces hold the text before `start`; no span goes before `position`.
    start = position = 0
    right = ""
    for span in spans:
        if not lost[span]:
            position = _end_behind(ends[span.text], position)
            continue
        position = _nearest_gap(gaps, shares, source_shares[span.start], position)
        if between := text[start:position].strip():
            pieces += [right, between]
        left, right = _gap(source, span, separator) if adjoins else (" ", " ")
        pieces += [left if pieces else "", span.text]
        start = position
    if rest := text[start:].lstrip():
        pieces += [right, rest]
    return "".join(pieces)


def _append(kept: KeptSpans, source: str, translation: str) -> str:
    """Return a translation without the spans of its source, and these behind it."""
    expected = [span.text for span in kept.find(source)]
    known = {*expected}
    spans = [span for span in kept.find(translation) if span.text in known]
    rest = _without(translation, [*spans, *kept.added(source, translation)])
    return " ".join(filter(None, (rest, *expected)))


def _end_behind(ends: Sequence[int], position: int) -> int:
    """Return the first end behind a position; the position itself if none is."""
    index = bisect_right(ends, position)
    return ends[index] if index < len(ends) else position


def _shares(line: str, spans: Sequence[Span]) -> list[float]:
    """Return the share of the text outside of spans that stands before each position."""
    is_outside = [True] * len(line)
    for span in spans:
        is_outside[span.start : span.end] = [False] * (span.end - span.start)
    before = list(itertools.accumulate(is_outside, initial=0))
    return [count / max(1, before[-1]) for count in before]


def _gaps(text: str, spans: Sequence[Span], separator: str) -> list[int]:
    """Return the positions of a text outside of spans and words; the last is its end."""
    inside = {position for span in spans for position in range(span.start + 1, span.end)}
    return [
        position
        for position in range(len(text) + 1)
        if position not in inside and not _splits_word(text, position, separator)
    ]


def _nearest_gap(gaps: Sequence[int], shares: Sequence[float], share: float, least: int) -> int:
    """Return the gap, from a position on, with the nearest share of the text before it.

    Of equally near ones it is the first. `shares` of all positions never fall.
    """
    first = bisect_left(gaps, least)
    behind = bisect_left(gaps, share, first, key=shares.__getitem__)
    share_before = shares[gaps[max(first, behind - 1)]]
    before = bisect_left(gaps, share_before, first, key=shares.__getitem__)
    nearest = (*gaps[before : before + 1], *gaps[behind : behind + 1])
    return min(nearest, key=lambda position: abs(shares[position] - share))


def _splits_word(text: str, position: int, separator: str) -> bool:
    """Return whether words with spaces between them go on at a position."""
    around = text[max(0, position - 1) : position + 1]
    has_spaces = separator != "" or around.isascii()
    return has_spaces and 0 < position < len(text) and not any(map(str.isspace, around))


def _gap(source: str, span: Span, separator: str) -> tuple[str, str]:
    """Return what stands before and behind a span: a tag adjoins its neighbors as in the source.

    Between two words, a tag that adjoins both keeps them apart.
    """
    if not separator:
        return "", ""
    if not span.text.startswith("<"):
        return " ", " "
    left = " " if source[: span.start][-1:].isspace() else ""
    right = " " if source[span.end :][:1].isspace() else ""
    if not left and not right:
        return ("", " ") if span.text.startswith("</") else (" ", "")
    return left, right
