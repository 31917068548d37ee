"""Resampling of sentence statistics: bootstrap, approximate randomization, and their p-values.

The random draws are those of `sacrebleu.significance` with the same seed, so the results are too.
Its memory is that of all resamples of all statistics at once; here it is that of `NUM_ROWS`.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Resamples drawn at once. NumPy draws booleans from words of 32 bits, and drops what is left of a
# word at the end of a call: a multiple of 32 leaves nothing.
NUM_ROWS = 32


def bootstrap(counts: Array, resamples: int, seed: int) -> Array:
    """Sum the statistics of sentences that are drawn with replacement (Koehn 2004).

    Args:
        counts: statistics `(systems, sentences, statistics)`; all systems get the same draws.
        resamples: number of draws of as many sentences as there are.
        seed: of the draws.

    Returns:
        The sums `(systems, resamples, statistics)`.
    """
    rng = np.random.default_rng(seed)
    num_sentences = counts.shape[1]

    def draw(num_rows: int) -> Array:
        lines = rng.integers(num_sentences, size=(num_rows, num_sentences))
        return np.array([np.bincount(row, minlength=num_sentences) for row in lines], np.float64)

    return np.concatenate([draw(rows) @ counts for rows in _chunks(resamples)], axis=1)


def randomization(baseline: Array, other: Array, shuffles: int, seed: int) -> tuple[Array, Array]:
    """Sum the statistics of two systems that exchange sentences at random.

    Approximate randomization (Riezler and Maxwell 2005, section 4).

    Args:
        baseline: statistics of a system `(sentences, statistics)`.
        other: those of another.
        shuffles: number of times that half of the sentences, on average, are exchanged.
        seed: of the exchanges.

    Returns:
        The sums of both `(shuffles, statistics)`.
    """
    rng = np.random.default_rng(seed)

    def draw(num_rows: int) -> Array:
        return rng.integers(2, size=(num_rows, len(baseline)), dtype=bool).astype(np.float64)

    gains = baseline - other
    sums = other.sum(0) + np.concatenate([draw(rows) @ gains for rows in _chunks(shuffles)])
    return sums, (baseline + other).sum(0) - sums


def _chunks(count: int) -> Iterator[int]:
    for start in range(0, count, NUM_ROWS):
        yield min(NUM_ROWS, count - start)


def confidence_interval(scores: Array) -> tuple[float, float]:
    """Return the mean of resampled scores -/+ half of their 95% range; no score is negative."""
    ordered = np.sort(scores)
    outside = len(ordered) // 40
    half = float(ordered[-1 - outside] - ordered[outside]) / 2
    mean = float(scores.mean())
    return max(0.0, mean - half), mean + half


def p_value(differences: Array, observed: float) -> float:
    """Return the share of differences above the observed one, which counts as one of them."""
    return float((differences > observed).sum() + 1) / (len(differences) + 1)
