"""How long the sentences of a text are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
