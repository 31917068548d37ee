"""Token embeddings, and how a stack encodes positions."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import (
    AlibiPositions,
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
    TransformerConfig,
)
from tformer_cli.kernels.dropout import Dropout
from tformer_cli.model.blocks.bias import (
    Alibi,
    DistanceBias,
    RelativeBias,
    SlidingWindow,
    SumOfBiases,
)
from tformer_cli.model.blocks.rotary import RotaryEmbedding


class KeptTokens(NamedTuple):
    """Tokens of a batch that keep their embedding; that of the others is zero (token cutoff).

    Attributes:
        source: (B, S) bool.
        target: (B, T) bool.
    """

    source: Tensor
    target: Tensor


class Embeddings(nn.Module):
    """Token embeddings times sqrt(D), plus positions (Vaswani et al. 2017, section 3.4).

    BART normalizes their sum (Lewis et al. 2020). T5 has another scale: 1.
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        positions: nn.Module | None,
        dropout: float,
        norm: nn.Module | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, dim)
        self.positions = positions
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.scale = math.sqrt(dim) if scale is None else scale

    def forward(self, ids: Tensor, positions: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return (N, T, D) for token ids (N, T) and positions (T,) or (N, T).

        A mask (N, T) of kept tokens sets the embedding of the others to zero, not their position.
        """
        embedded = self.tokens(ids) * self.scale
        if kept is not None:
            embedded = embedded * kept[..., None]
        if self.positions is not None:
            embedded = embedded + self.positions(positions)
        if self.norm is not None:
            embedded = self.norm(embedded)
        dropped: Tensor = self.dropout(embedded)
        return dropped


class SinusoidalEncoding(nn.Module):
    """Sine on even and cosine on odd components (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(p / 10000^(2i/D)). The program of the
    paper's authors, tensor2tensor, has D - 2 for the D of the exponent: the lowest frequency is
    1/10000. Encodings are computed for the given positions, so there is no maximum length. The
    first position is p = `offset`.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(self, dim: int, config: SinusoidalPositions) -> None:
        super().__init__()
        divisor = dim if config.frequencies == "paper" else dim - 2
        self.offset = config.offset
        frequencies = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / divisor))
        # cos(x) = sin(x + pi / 2), so one function serves all components.
        phases = torch.tensor([0.0, math.pi / 2]).repeat(dim // 2)
        self.register_buffer("frequencies", frequencies.repeat_interleave(2), persistent=False)
        self.register_buffer("phases", phases, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """Return (..., D) for integer positions (...)."""
        moved = positions + self.offset
        return torch.sin(moved[..., None] * self.frequencies + self.phases)


class LearnedEncoding(nn.Embedding):
    """A vector for each position; the first one is that of row `offset`."""

    def __init__(self, config: LearnedPositions, dim: int) -> None:
        super().__init__(config.max_length + config.offset, dim)
        self.offset = config.offset

    def forward(self, positions: Tensor) -> Tensor:
        """Return (..., D) for integer positions (...)."""
        return super().forward(positions + self.offset)


@dataclass(frozen=True, slots=True)
class Positions:
    """How a stack encodes positions; a stack calls the members that are set.

    Attributes:
        absolute: added to the embeddings, by position.
        rotary: rotates queries and keys of self-attention.
        bias: added to the logits of self-attention.
    """

    absolute: nn.Module | None = None
    rotary: RotaryEmbedding | None = None
    bias: DistanceBias | None = None


def build_positions(config: TransformerConfig, *, is_causal: bool) -> Positions:
    """Return the positions of one stack."""
    kind = config.positions
    absolute: nn.Module | None = None
    rotary = None
    biases: list[DistanceBias] = []
    if isinstance(kind, SinusoidalPositions):
        absolute = SinusoidalEncoding(config.dim, kind)
    elif isinstance(kind, LearnedPositions):
        absolute = LearnedEncoding(kind, config.dim)
    elif isinstance(kind, RotaryPositions):
        width = config.head_dim if config.latent is None else config.latent.rope_head_dim
        rotary = RotaryEmbedding(width, kind)
    elif isinstance(kind, AlibiPositions):
        biases.append(Alibi(config.num_heads))
    elif isinstance(kind, T5Positions):
        sizes = kind.num_buckets, kind.max_distance, config.num_heads
        biases.append(RelativeBias(*sizes, is_causal=is_causal))
    if config.sliding_window is not None:
        biases.append(SlidingWindow(config.sliding_window))
    bias = SumOfBiases(biases) if len(biases) > 1 else next(iter(biases), None)
    return Positions(absolute, rotary, bias)
