"""A self-contained HTML page of scores, curves and sentences of one or two systems."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tformer_cli.plotting.curves import PANELS, History, Point
from tformer_cli.plotting.page import filled_page, page_json
from tformer_cli.storage.atomic import write_text

# Bounds of a page: characters of a text, lines of a list, words that a line is listed for, points
# of a curve, bytes of sentences.
MAX_TEXT = 1_000
MAX_LISTED = 100
MAX_LISTED_WORDS = 12
MAX_POINTS = 500
MAX_BYTES = 22_000_000

CURVE_NAMES = {"train_loss": "training", "valid_loss": "validation", "valid_bleu": "validation"}


class Table(NamedTuple):
    """A table; the first column names the rows."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Chart(NamedTuple):
    """Curves by name that share their axes."""

    title: str
    curves: Mapping[str, Sequence[Point]]


class BucketScores(NamedTuple):
    """Scores of some lines: by metric, for each system the score and the ends of its interval."""

    name: str
    num_sentences: int
    scores: Mapping[str, Sequence[tuple[float, float, float]]]


class Breakdown(NamedTuple):
    """Scores by a property of the lines."""

    title: str
    note: str
    buckets: Sequence[BucketScores]


class SentenceList(NamedTuple):
    """Lines, numbered from 0, with the words that they are listed for, if any."""

    name: str
    note: str
    lines: Sequence[tuple[int, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows.

    Attributes:
        title: of the page.
        facts: names and values below the title.
        systems: names of one or two systems.
        languages: language tags (BCP 47) of source and target; empty if unknown.
        tables: of scores, above the curves, and of terms, below the breakdowns.
        charts: learning curves.
        breakdowns: scores by length and by frequency.
        lists: of sentences.
        sources: lines of the source text, none if it is unknown.
        references: one or several texts.
        hypotheses: a text of each system.
        scores: of each line, of each system.
        marks: hypotheses of some lines in segments that are in turn equal and different.
    """

    title: str
    facts: Mapping[str, str]
    systems: Sequence[str]
    languages: tuple[str, str]
    tables: Sequence[Table]
    charts: Sequence[Chart]
    breakdowns: Sequence[Breakdown]
    lists: Sequence[SentenceList]
    sources: Sequence[str]
    references: Sequence[Sequence[str]]
    hypotheses: Sequence[Sequence[str]]
    scores: Sequence[Sequence[float]]
    marks: Mapping[int, Sequence[Sequence[str]]]

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values, with as many sentences as fit, the listed ones first."""
        lists = [
            {
                **each._asdict(),
                "lines": [
                    (line, [*map(shorten, words[:MAX_LISTED_WORDS])])
                    for line, words in each.lines[:MAX_LISTED]
                ],
                "total": len(each.lines),
            }
            for each in self.lists
        ]
        listed = dict.fromkeys(line for each in lists for line, _ in each["lines"])
        sentences: dict[int, dict[str, Any]] = {}
        num_bytes = 0
        for line in [*listed, *(n for n in range(len(self.scores[0])) if n not in listed)]:
            sentence = self._sentence(line)
            num_bytes += len(page_json(sentence).encode("utf-8", "backslashreplace"))
            if num_bytes > MAX_BYTES:
                break
            sentences[line] = sentence
        return {
            "facts": self.facts,
            "systems": self.systems,
            "languages": self.languages,
            "tables": [table._asdict() for table in self.tables],
            "charts": [
                {**each._asdict(), "curves": {CURVE_NAMES[x]: y for x, y in each.curves.items()}}
                for each in self.charts
            ],
            "breakdowns": [
                {**each._asdict(), "buckets": [bucket._asdict() for bucket in each.buckets]}
                for each in self.breakdowns
            ],
            "lists": [
                {**each, "lines": [pair for pair in each["lines"] if pair[0] in sentences]}
                for each in lists
            ],
            "num_sentences": len(self.scores[0]),
            "sentences": [sentences[line] for line in sorted(sentences)],
        }

    def _sentence(self, line: int) -> dict[str, Any]:
        return {
            "line": line,
            "source": shorten(self.sources[line]) if self.sources else None,
            "references": [shorten(text[line]) for text in self.references],
            # In segments, of which the odd ones differ.
            "hypotheses": self.marks.get(line)
            or [[shorten(text[line])] for text in self.hypotheses],
            "scores": [round(scores[line], 1) for scores in self.scores],
        }


def shorten(text: str) -> str:
    """Return a text with at most `MAX_TEXT` characters."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def learning_curves(history: History) -> list[Chart]:
    """Return loss and BLEU by step, with a bounded number of points at even distances."""
    charts = []
    for panel in PANELS:
        curves = {
            name: list(_thinned(history.curves[name]))
            for name in panel.names
            if name in CURVE_NAMES and name in history.curves
        }
        if curves:
            charts.append(Chart(panel.label, curves))
    return charts


def _thinned(points: Sequence[Point]) -> Iterator[Point]:
    """Yield at most `MAX_POINTS` points, the last one among them."""
    stride = -(-len(points) // MAX_POINTS)
    return reversed(points[::-1][::stride])


def render(page: Page) -> str:
    """Return the HTML of a page, which needs no other file."""
    text = filled_page("report", page.as_plain(), title=page.title)
    # Paths need not be UTF-8.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def save_page(page: Page, file: Path) -> None:
    """Write a page atomically."""
    write_text(file, render(page))
