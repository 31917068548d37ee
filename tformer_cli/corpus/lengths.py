"""How long the sentences of a text are, and how many its lines have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tformer_cli.text.segments import sentence_ends

# Enough to tell 1% from 2%, and split in a second or two.
COUNTED_LINES = 50_000


@dataclass(frozen=True, slots=True)
class LengthReport:
    """The distribution of sentence lengths, in tokens; an empty text has zeros.

    Attributes:
        mean: tokens of a sentence, on average.
        median: half of the sentences have no more.
        p99: 99 of 100 sentences have no more.
        longest: the longest sentence has these.
    """

    mean: float
    median: int
    p99: int
    longest: int

    def __str__(self) -> str:
        return (
            f"{self.mean:.1f} tokens a sentence "
            f"(median {self.median:,}, 99% up to {self.p99:,}, longest {self.longest:,})"
        )


def report_lengths(lengths: Sequence[int] | np.ndarray) -> LengthReport:
    """Return the distribution of some lengths."""
    if len(lengths) == 0:
        return LengthReport(mean=0.0, median=0, p99=0, longest=0)
    # The smallest length that this share of all lengths does not exceed.
    median, p99 = np.quantile(lengths, (0.5, 0.99), method="inverted_cdf")
    return LengthReport(float(np.mean(lengths)), int(median), int(p99), int(np.max(lengths)))


def max_sentences(lines: Iterable[str]) -> int:
    """Return the number of sentences that 99 of 100 lines with text do not exceed.

    All lines are read. Where there are many, evenly spaced ones are counted.
    """
    counted: list[str] = []
    spacing = 1
    for number, line in enumerate(filter(str.strip, lines)):
        if number % spacing == 0:
            counted.append(line)
            if len(counted) == 2 * COUNTED_LINES:
                counted, spacing = counted[::2], 2 * spacing
    return report_lengths([len(sentence_ends(line.strip())) for line in counted]).p99
