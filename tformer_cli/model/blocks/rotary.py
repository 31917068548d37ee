"""Rotary position embedding, RoPE (Su et al. 2021, section 3.2), and its context extensions."""

import math

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import (
    LinearScaling,
    NtkScaling,
    RotaryPositions,
    YarnScaling,
)

CosSin = tuple[Tensor, Tensor]
"""cos and sin of the angles: (T, Dh), or (N, 1, T, Dh) where each row has its own positions."""


def apply_rotary_emb(heads: Tensor, rotary: CosSin | None) -> Tensor:
    """Return heads (N, H, T, Dh) rotated by their positions; unchanged without `rotary`.

    Component i of the first half and component i of the second half are a pair, as in Llama (Su
    et al. 2021, section 3.4.2, pairs neighbors).
    """
    if rotary is None:
        return heads
    cos, sin = rotary
    first, second = heads.chunk(2, dim=-1)
    rotated_half = torch.cat((-second, first), dim=-1)
    return (heads * cos + rotated_half * sin).to(heads.dtype)


class RotaryEmbedding(nn.Module):
    """Cos and sin of m theta_i with theta_i = base^(-2i/Dh), for position m and pair i from 0.

    Su et al. 2021, section 3.2.2. Both are multiplied by YaRN's attention factor.
    """

    frequencies: Tensor  # (Dh / 2,)

    def __init__(self, head_dim: int, config: RotaryPositions) -> None:
        """Compute the frequencies for a head width Dh."""
        super().__init__()
        frequencies, self.attention_factor = scaled_frequencies(head_dim, config)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, positions: Tensor) -> CosSin:
        """Return cos and sin for integer positions (T,) or (N, T)."""
        angles = positions[..., None] * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)  # (..., T, Dh)
        if angles.dim() == 3:
            angles = angles[:, None]
        return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor


def scaled_frequencies(head_dim: int, config: RotaryPositions) -> tuple[Tensor, float]:
    """Return the frequencies (Dh / 2,) after context extension, and the attention factor."""
    scaling = config.scaling
    factor = attention_factor(config)
    frequencies = 1.0 / config.base ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if isinstance(scaling, LinearScaling):
        # Position interpolation (Chen et al. 2023, section 2.3).
        return frequencies / scaling.factor, factor
    if isinstance(scaling, NtkScaling):
        # The highest frequency stays, the lowest is divided by the factor: a base that is
        # factor^(Dh / (Dh - 2)) times as large (Peng et al. 2023, section 3.1).
        # Named, since linspace may ignore torch.device once transformers 5 has loaded a model.
        exponents = torch.linspace(0, 1, len(frequencies), device=frequencies.device)
        return frequencies / scaling.factor**exponents, factor
    if isinstance(scaling, YarnScaling):
        # NTK by parts (Peng et al. 2023, section 3.2).
        ramp = interpolation_ramp(head_dim, config.base, scaling)
        return frequencies / scaling.factor * ramp + frequencies * (1 - ramp), factor
    return frequencies, factor


def attention_factor(config: RotaryPositions) -> float:
    """Return YaRN's factor of queries and keys (Peng et al. 2023, section 3.4), otherwise 1."""
    scaling = config.scaling
    return 0.1 * math.log(scaling.factor) + 1.0 if isinstance(scaling, YarnScaling) else 1.0


def interpolation_ramp(head_dim: int, base: float, scaling: YarnScaling) -> Tensor:
    """Return how far each frequency is interpolated, from 0 to 1: (Dh / 2,).

    Peng et al. 2023, section 3.2; the ramp is linear in the index of the pair, as in the authors'
    code, rather than in the number of rotations.
    """

    def pair_with_rotations(rotations: float) -> float:
        """Return the pair that rotates so many times within the original length."""
        length = scaling.original_length / (rotations * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(base))

    first = max(math.floor(pair_with_rotations(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_with_rotations(scaling.beta_slow)), head_dim - 1)
    pairs = torch.arange(head_dim // 2).float()
    return ((pairs - first) / max(last - first, 1e-3)).clamp(0, 1)
