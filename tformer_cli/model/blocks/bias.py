"""Biases added to the logits of self-attention by the distance between two tokens."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Gives a weight of exactly zero beside any other logit, but stays finite: a token whose window
# holds no other token (padding far from all real tokens) still has finite weights.
MASK_VALUE = -3e4


class DistanceBias(nn.Module, ABC):
    """A function of distance, added to the logits of self-attention."""

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias for positions (T,) or (N, T) of queries and (L,) or (N, L) of keys.

        It broadcasts to (N, H, T, L).
        """
        # (1, T, L) or (N, 1, T, L): position of the key minus position of the query.
        return self.of_distance((keys[..., None, :] - queries[..., :, None])[..., None, :, :])

    @abstractmethod
    def of_distance(self, distances: Tensor) -> Tensor:
        """Return the bias for distances (..., 1, T, L), negative before the query."""


class Alibi(DistanceBias):
    """ALiBi: -m |distance| with a slope m for each head (Press et al. 2022, section 3).

    In an encoder both directions are penalized alike.
    """

    slopes: Tensor  # (H, 1, 1)

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", slopes(num_heads)[:, None, None], persistent=False)

    def of_distance(self, distances: Tensor) -> Tensor:
        """Return (..., H, T, L)."""
        return -self.slopes * distances.abs()


def slopes(num_heads: int) -> Tensor:
    """Return the slope of each head, (H,): 2^(-8/H), 2^(-16/H), ...

    Where H is no power of two: the slopes of the next smaller power, then every other slope of
    the next larger power (code of Press et al. 2022).
    """
    power = 1 << (num_heads.bit_length() - 1)
    regular = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
    return torch.tensor((regular + between)[:num_heads])


class RelativeBias(DistanceBias):
    """T5 relative position bias, learned for each bucket and head (Raffel et al. 2020, 2.1)."""

    def __init__(
        self, num_buckets: int, max_distance: int, num_heads: int, *, is_causal: bool
    ) -> None:
        """Create the table.

        Args:
            num_buckets: of distances.
            max_distance: from which on all distances share a bucket.
            num_heads: H.
            is_causal: all buckets are for keys before the query; otherwise each direction has
                half of the buckets.
        """
        super().__init__()
        self.table = nn.Embedding(num_buckets, num_heads)
        self.num_directions = 1 if is_causal else 2
        self.max_distance = max_distance

    def of_distance(self, distances: Tensor) -> Tensor:
        """Return (..., H, T, L)."""
        bias: Tensor = self.table(self.buckets(distances.squeeze(-3)))  # (..., T, L, H)
        return bias.movedim(-1, -3)

    def buckets(self, distances: Tensor) -> Tensor:
        """Return the bucket of each distance, in any shape.

        In each direction the first half of the buckets holds one distance each, the second half
        logarithmic ranges up to the maximum distance.
        """
        num_buckets = self.table.num_embeddings // self.num_directions
        after = distances.clamp(min=0) if self.num_directions == 2 else torch.zeros_like(distances)
        lengths = torch.maximum(-distances, after).clamp(min=0)
        exact = num_buckets // 2
        ratios = torch.log(lengths.clamp(min=1).float() / exact)
        steps = (ratios / math.log(self.max_distance / exact) * (num_buckets - exact)).long()
        buckets = torch.where(lengths < exact, lengths, (exact + steps).clamp(max=num_buckets - 1))
        return buckets + (after > 0) * num_buckets


class SlidingWindow(DistanceBias):
    """Masks tokens that are `width` or more tokens away, in each direction.

    Beltagy et al. 2020, section 3.1; `width` counts the token itself.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def of_distance(self, distances: Tensor) -> Tensor:
        """Return (..., 1, T, L)."""
        return torch.where(distances.abs() < self.width, 0.0, MASK_VALUE)


class SumOfBiases(DistanceBias):
    """The sum of several biases."""

    def __init__(self, parts: Iterable[DistanceBias]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def of_distance(self, distances: Tensor) -> Tensor:
        """Return what broadcasts to (..., H, T, L)."""
        parts = (part for part in self.parts if isinstance(part, DistanceBias))
        return functools.reduce(torch.add, [part.of_distance(distances) for part in parts])
