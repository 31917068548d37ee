"""How a stack knows the order of its tokens."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import LearnedPositions, PositionsConfig


class Rotary(Protocol):
    """Turns the queries and keys of self-attention by their positions."""

    def __call__(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Return (N, H, T, Dh) turned; positions are (T,) or (N, T)."""
        ...


class AttentionBias(Protocol):
    """Adds a function of distance to the logits of self-attention."""

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return a bias that broadcasts to (N, H, T, L).

        Args:
            queries: (T,) or (N, T) places of the queries.
            keys: (L,) or (N, L) places of the keys.
        """
        ...


@dataclass(frozen=True, slots=True)
class Positions:
    """What a stack uses; each member is optional, and a stack calls what is there.

    Attributes:
        absolute: vectors added to the embeddings, looked up by position.
        rotary: applied to queries and keys of self-attention.
        bias: added to the logits of self-attention.
        max_length: longest sequence in tokens, or None where any length will do.
    """

    absolute: nn.Module | None = None
    rotary: Rotary | None = None
    bias: AttentionBias | None = None
    max_length: int | None = None


class SinusoidalEncoding(nn.Module):
    """Sine on even and cosine on odd components (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(p / 10000^(2i/D)). Computed for the
    positions asked for, so there is no longest sentence.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        frequencies = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        # cos(x) is sin(x + pi / 2), so one function serves all components.
        phases = torch.tensor([0.0, math.pi / 2]).repeat(dim // 2)
        self.register_buffer("frequencies", frequencies.repeat_interleave(2), persistent=False)
        self.register_buffer("phases", phases, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """Return (..., D) for integer positions (...)."""
        return torch.sin(positions[..., None] * self.frequencies + self.phases)


def build_positions(config: PositionsConfig, dim: int) -> Positions:
    """Return the positions of one stack."""
    if isinstance(config, LearnedPositions):
        return Positions(
            absolute=nn.Embedding(config.max_length, dim), max_length=config.max_length
        )
    return Positions(absolute=SinusoidalEncoding(dim))
