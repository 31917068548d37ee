"""What is added to the logits of self-attention for the distance between two tokens."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Next to any other logit this has a weight of exactly zero, and a token that sees nothing else
# (padding far from all real tokens) still has weights that are numbers.
FAR = -3e4


class DistanceBias(nn.Module, ABC):
    """Adds a function of distance to the logits of self-attention."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return what is added, which broadcasts to (N, H, T, L).

        Args:
            queries: (T,) or (N, T) places of the queries.
            keys: (L,) or (N, L) places of the keys.
        """
        # (1, T, L) or (N, 1, T, L): how far the key is behind the query.
        return self.of_distance((keys[..., None, :] - queries[..., :, None])[..., None, :, :])

    @abstractmethod
    def of_distance(self, distances: Tensor) -> Tensor:
        """Return what is added for distances (..., 1, T, L), negative before the query."""


class Alibi(DistanceBias):
    """-m |distance|, with a rate m for each head (Press et al. 2022, section 3).

    In a decoder only keys before the query are seen; in an encoder both sides fall alike.
    """

    slopes: Tensor  # (H, 1, 1)

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", slopes(num_heads)[:, None, None], persistent=False)

    def of_distance(self, distances: Tensor) -> Tensor:
        """Return (..., H, T, L)."""
        return -self.slopes * distances.abs()


def slopes(num_heads: int) -> Tensor:
    """Return the rate of each head, (H,): 2^(-8/H), 2^(-16/H), ...

    Where H is no power of two, the rates are those of the next smaller power, and then every other
    one of the next larger (Press et al. 2022, the authors' code).
    """
    power = 1 << (num_heads.bit_length() - 1)
    rates = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
    return torch.tensor((rates + between)[:num_heads])


class RelativeBias(DistanceBias):
    """A trained number for each head and class of distances (Raffel et al. 2020, section 2.1)."""

    def __init__(
        self, num_buckets: int, max_distance: int, num_heads: int, *, is_causal: bool
    ) -> None:
        """Begin with a number for each class.

        Args:
            num_buckets: classes of distances.
            max_distance: from which on all are in one class.
            num_heads: H.
            is_causal: no key behind the query is seen, so all classes are for those before it;
                otherwise either side has half of them.
        """
        super().__init__()
        self.table = nn.Embedding(num_buckets, num_heads)
        self.num_sides = 1 if is_causal else 2
        self.max_distance = max_distance

    def of_distance(self, distances: Tensor) -> Tensor:
        """Return (..., H, T, L)."""
        found: Tensor = self.table(self.buckets(distances.squeeze(-3)))  # (..., T, L, H)
        return found.movedim(-1, -3)

    def buckets(self, distances: Tensor) -> Tensor:
        """Return the class of each distance, in any shape.

        The nearer half of a side has a class for each distance, the farther one for each of equal
        ratios up to the largest.
        """
        own = self.table.num_embeddings // self.num_sides
        behind = distances.clamp(min=0) if self.num_sides == 2 else torch.zeros_like(distances)
        lengths = torch.maximum(-distances, behind).clamp(min=0)
        exact = own // 2
        ratios = torch.log(lengths.clamp(min=1).float() / exact)
        steps = (ratios / math.log(self.max_distance / exact) * (own - exact)).long()
        classes = torch.where(lengths < exact, lengths, (exact + steps).clamp(max=own - 1))
        return classes + (behind > 0) * own


class Window(DistanceBias):
    """Hides what is farther away than a number of tokens, the query's own among them.

    Beltagy et al. 2020, section 3.1, with that number on either side.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def of_distance(self, distances: Tensor) -> Tensor:
        """Return (..., 1, T, L)."""
        return torch.where(distances.abs() < self.width, 0.0, FAR)


class SumOfBiases(DistanceBias):
    """Several at once."""

    def __init__(self, parts: Iterable[DistanceBias]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    @property
    def _biases(self) -> list[DistanceBias]:
        return [part for part in self.parts if isinstance(part, DistanceBias)]

    def of_distance(self, distances: Tensor) -> Tensor:
        """Return what broadcasts to (..., H, T, L)."""
        found: list[Tensor] = [part.of_distance(distances) for part in self._biases]
        return functools.reduce(torch.add, found)
