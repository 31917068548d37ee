"""Reproducible choices."""

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Chance, from a seed.

    Only `random.random` is drawn from: it alone is promised to give the same numbers in every
    Python version.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """True this often."""
        return self._random.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices, each as likely."""
        return choices[int(self._random.random() * len(choices))]

    def weighted(self, weights: Mapping[T, float]) -> T:
        """One of the keys, as likely as its weight says."""
        point = self._random.random() * sum(weights.values())
        *others, last = weights
        for choice in others:
            point -= weights[choice]
            if point < 0:
                return choice
        return last
