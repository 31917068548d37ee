"""How often an epoch sees each pair, one number a text rather than one a pair."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True, slots=True)
class PairWeights:
    """The weights of n pairs, in runs of equal ones.

    Attributes:
        stops: (k,) run j ends before pair stops[j]; it begins where run j - 1 ends.
        values: (k,) the weight of each pair of run j.
    """

    stops: np.ndarray
    values: np.ndarray

    @classmethod
    def of_runs(cls, counts: Iterable[int], values: Iterable[float]) -> Self:
        """Return counts[j] weights of values[j], run after run."""
        runs = zip(counts, values, strict=True)
        kept = [(count, value) for count, value in runs if count]
        return cls(
            stops=np.cumsum([count for count, _ in kept], dtype=np.int64),
            values=np.array([value for _, value in kept], dtype=np.float64),
        )

    @classmethod
    def of_pairs(cls, weights: Iterable[float]) -> Self:
        """Return the weights, one given for each pair."""
        runs = [(value, sum(1 for _ in run)) for value, run in itertools.groupby(weights)]
        return cls.of_runs((count for _, count in runs), (value for value, _ in runs))

    def __len__(self) -> int:
        return int(self.stops[-1]) if len(self.stops) else 0

    def __getitem__(self, places: slice) -> np.ndarray:
        """Return the weights of some pairs, as an array."""
        pairs = np.arange(*places.indices(len(self)))
        return self.values[np.searchsorted(self.stops, pairs, side="right")]
