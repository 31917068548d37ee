"""How a stack knows the order of its tokens."""

import math
from dataclasses import dataclass

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
from tformer_cli.model.blocks.bias import Alibi, DistanceBias, RelativeBias, SumOfBiases, Window
from tformer_cli.model.blocks.rotary import RotaryEmbedding


@dataclass(frozen=True, slots=True)
class Positions:
    """What a stack uses; each member is optional, and a stack calls what is there.

    Attributes:
        absolute: vectors added to the embeddings, looked up by position.
        rotary: says how queries and keys of self-attention are turned.
        bias: added to the logits of self-attention.
    """

    absolute: nn.Module | None = None
    rotary: RotaryEmbedding | None = None
    bias: DistanceBias | None = None


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


def build_positions(config: TransformerConfig, *, is_causal: bool) -> Positions:
    """Return the positions of one stack.

    Args:
        config: of the network.
        is_causal: whether no token of the stack sees one behind it.
    """
    chosen = config.positions
    absolute: nn.Module | None = None
    rotary = None
    biases: list[DistanceBias] = []
    if isinstance(chosen, SinusoidalPositions):
        absolute = SinusoidalEncoding(config.dim)
    elif isinstance(chosen, LearnedPositions):
        absolute = nn.Embedding(chosen.max_length, config.dim)
    elif isinstance(chosen, RotaryPositions):
        width = config.head_dim if config.latent is None else config.latent.rope_head_dim
        rotary = RotaryEmbedding(width, chosen)
    elif isinstance(chosen, AlibiPositions):
        biases.append(Alibi(config.num_heads))
    elif isinstance(chosen, T5Positions):
        biases.append(
            RelativeBias(
                chosen.num_buckets, chosen.max_distance, config.num_heads, is_causal=is_causal
            )
        )
    if config.sliding_window is not None:
        biases.append(Window(config.sliding_window))
    bias = SumOfBiases(biases) if len(biases) > 1 else next(iter(biases), None)
    return Positions(absolute, rotary, bias)
