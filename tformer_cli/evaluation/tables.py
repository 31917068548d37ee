"""Scores, tests and terms as cells of tables, printed by commands and shown on pages."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from string import ascii_uppercase

from tformer_cli.choices import MetricName
from tformer_cli.evaluation.analysis import MAX_COUNTED, Terms
from tformer_cli.evaluation.compare import RESAMPLES, SEED, Comparison, SystemScore
from tformer_cli.plotting.report import Breakdown, BucketScores, Table
from tformer_cli.translate.confidence import NUM_BINS, Bin, Reliability

TEST_HEAD = (
    *("", "score", "95% interval", "vs A", "p bootstrap", "p random"),
    *("wins", "ties", "losses"),
)
RELIABILITY_HEAD = ("", "sentences", "quality", "confidence", "ECE", "ECE of probability per token")

# Scores of the lines of each bucket, by its name and by metric, of each system.
BucketTable = Mapping[str, Mapping[MetricName, tuple[SystemScore, ...]]]


def breakdowns(
    by_length: BucketTable, by_frequency: BucketTable, has_sources: bool
) -> list[Breakdown]:
    side = "source" if has_sources else "reference"
    note = "By number of words, without punctuation; of characters in a language without spaces."
    tables = [Breakdown(f"Length of the {side}", note, _plain(by_length))]
    if by_frequency:
        note = (
            "By how often the rarest word of the source occurs in the training sources of its "
            f"language, or in the first {MAX_COUNTED:,} lines of them."
        )
        tables.append(Breakdown("Rarest word", note, _plain(by_frequency)))
    return tables


def _plain(table: BucketTable) -> list[BucketScores]:
    return [
        BucketScores(
            name,
            next(iter(scores.values()))[0].score.num_sentences,
            {
                systems[0].score.name: [(one.score.score, *one.interval) for one in systems]
                for systems in scores.values()
            },
        )
        for name, scores in table.items()
    ]


def score_table(scores: Mapping[MetricName, SystemScore]) -> Table:
    rows = [
        (one.score.name, f"{one.score.score:.2f}", _interval(one), one.score.signature)
        for one in scores.values()
    ]
    note = f"Bootstrap with {RESAMPLES:,} resamples, seed {SEED}."
    return Table("Scores", note, ("", "score", "95% interval", "signature"), rows)


def term_table(terms: Iterable[Terms]) -> Table:
    note = (
        "Of the terms that source and reference both have. Names are capitalized words that begin "
        "no sentence."
    )
    rows = [
        (
            each.kind,
            f"{each.num_kept + each.num_lost:,}",
            f"{each.num_kept:,}",
            f"{each.num_lost:,}",
            f"{each.num_kept / total:.1%}" if (total := each.num_kept + each.num_lost) else "",
        )
        for each in terms
    ]
    return Table("Terms", note, ("", "terms", "kept", "lost", "kept share"), rows)


def confidence_tables(reliability: Mapping[str, Reliability], text: str) -> Iterator[Table]:
    """Yield the calibration of texts, and the bins of one of them; nothing where there is none."""
    if reliability:
        note = "Quality is sentence chrF, 0 to 1; ECE is the expected calibration error."
        rows = list(itertools.starmap(reliability_row, reliability.items()))
        yield Table("Confidence", note, RELIABILITY_HEAD, rows)
    if text in reliability:
        note = "By confidence, in steps of 0.1."
        bins = [
            (f"{_bin_start(each.confidence):.1f}", *_cells(each)) for each in reliability[text].bins
        ]
        yield Table(f"Confidence: {text}", note, RELIABILITY_HEAD[:4], bins)


def _bin_start(confidence: float) -> float:
    """Return where the bin of a mean confidence begins; the mean of equal ones may be rounded."""
    return min(math.floor(round(confidence * NUM_BINS, 6)), NUM_BINS - 1) / NUM_BINS


def reliability_row(name: str, reliability: Reliability) -> list[str]:
    """Return the cells below `RELIABILITY_HEAD` of a text."""
    errors = reliability.ece, reliability.raw_ece
    return [name, *_cells(reliability), *(f"{error:.3f}" for error in errors)]


def _cells(part: Reliability | Bin) -> list[str]:
    return [f"{part.num_sentences:,}", f"{part.quality:.3f}", f"{part.confidence:.3f}"]


def test_tables(comparison: Comparison) -> Iterator[Table]:
    """Yield what `tformer compare` prints of each metric."""
    for systems in comparison.scores.values():
        score = systems[0].score
        rows = [score_row(letter, one) for letter, one in zip(letters(), systems, strict=False)]
        note = f"{verdict('B', systems[1])} {score.signature}"
        yield Table(score.name, note, TEST_HEAD, rows)


def letters() -> Iterator[str]:
    """Yield A to Z, AA, AB and so on, the names of systems in tables."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(ascii_uppercase, repeat=length))


def score_row(letter: str, scored: SystemScore) -> list[str]:
    """Return the cells below `TEST_HEAD` of a system."""
    cells = [letter, f"{scored.score.score:.2f}", _interval(scored)]
    contrast = scored.contrast
    if contrast is None:
        return cells + [""] * 6
    counts = (contrast.num_wins, contrast.num_ties, contrast.num_losses)
    p_values = (contrast.p_bootstrap, contrast.p_randomization)
    return [
        *cells,
        f"{contrast.difference:+.2f}",
        *(_relation(p_value).removeprefix("= ") for p_value in p_values),
        *(f"{count:,}" for count in counts),
    ]


def verdict(letter: str, scored: SystemScore) -> str:
    """Return how a system compares with the baseline A, in a sentence."""
    contrast = scored.contrast
    assert contrast is not None, "only the baseline has none"
    metric, p_text = scored.score.name, f"p {_relation(contrast.p_value)}"
    if contrast.verdict == "undecided":
        return f"{metric}: no significant difference between {letter} and A ({p_text})."
    amount = f"{abs(contrast.difference):.2f} {metric}"
    return f"{letter} is {contrast.verdict} than A by {amount} ({p_text})."


def _interval(scored: SystemScore) -> str:
    low, high = scored.interval
    return f"{low:.2f}-{high:.2f}"


def _relation(p_value: float) -> str:
    return f"= {p_value:.3f}" if p_value >= 0.0005 else "< 0.001"
