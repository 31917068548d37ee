"""Rotary positions: queries and keys turned by their places (Su et al. 2021, section 3.2)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import (
    LinearScaling,
    NtkScaling,
    RotaryPositions,
    YarnScaling,
)


class Turn(NamedTuple):
    """By how much the heads of some places are turned.

    Attributes:
        cosines: (T, Dh), or (N, 1, T, Dh) with positions for each row; times `attention_factor`.
        sines: likewise.
        attention_factor: what queries and keys are multiplied by.
    """

    cosines: Tensor
    sines: Tensor
    attention_factor: float


def apply_rotary_emb(heads: Tensor, turn: Turn | None) -> Tensor:
    """Return heads (N, H, T, Dh) turned; without a turn, as they are.

    Component i of the first half and component i of the second are a point of a plane, which is
    turned by an angle of its own (Su et al. 2021, section 3.4.2, where the two are neighbours).
    """
    if turn is None:
        return heads
    first, second = heads.chunk(2, dim=-1)
    quarter_turn = torch.cat((-second, first), dim=-1)
    return (heads * turn.cosines + quarter_turn * turn.sines).to(heads.dtype)


def sharpened(queries: Tensor, turn: Turn | None) -> Tensor:
    """Return queries whose keys are not rotated, for logits as sharp as where both are."""
    return queries if turn is None else queries * turn.attention_factor**2


class RotaryEmbedding(nn.Module):
    """The turn of each place: m theta_i, with theta_i = base^(-2i/Dh), for place m and pair i.

    Su et al. 2021, section 3.2.2, with pairs counted from 0.
    """

    frequencies: Tensor  # (Dh / 2,)

    def __init__(self, head_dim: int, config: RotaryPositions) -> None:
        """Work out the frequencies.

        Args:
            head_dim: Dh, width of what is turned.
            config: their base and scaling.
        """
        super().__init__()
        frequencies, self.attention_factor = scaled_frequencies(head_dim, config)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, positions: Tensor) -> Turn:
        """Return the turn of integer positions (T,) or (N, T)."""
        angles = positions[..., None] * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)  # (..., T, Dh)
        if angles.dim() == 3:
            angles = angles[:, None]
        cosines, sines = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return Turn(cosines, sines, self.attention_factor)


def scaled_frequencies(head_dim: int, config: RotaryPositions) -> tuple[Tensor, float]:
    """Return the frequencies (Dh / 2,), and what queries and keys are multiplied by."""
    scaling = config.scaling
    frequencies = 1.0 / config.base ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if isinstance(scaling, LinearScaling):
        # Chen et al. 2023, section 2.3.
        return frequencies / scaling.factor, 1.0
    if isinstance(scaling, NtkScaling):
        # The fastest stays, the slowest is divided by the factor, and so is that of a base which is
        # factor^(Dh / (Dh - 2)) times as large (Peng et al. 2023, section 3.1).
        return frequencies / scaling.factor ** torch.linspace(0, 1, len(frequencies)), 1.0
    if isinstance(scaling, YarnScaling):
        # Peng et al. 2023, sections 3.2 and 3.4.
        share = interpolation_ramp(head_dim, config.base, scaling)
        scaled = frequencies / scaling.factor * share + frequencies * (1 - share)
        return scaled, 0.1 * math.log(scaling.factor) + 1.0
    return frequencies, 1.0


def interpolation_ramp(head_dim: int, base: float, scaling: YarnScaling) -> Tensor:
    """Return how far each wave is interpolated, from 0 to 1: (Dh / 2,).

    Peng et al. 2023, section 3.2; between the limits it rises evenly from pair to pair, as in the
    authors' code, rather than with the number of turns.
    """

    def pair_that_turns(times: float) -> float:
        """Return the pair whose wave turns so many times within the training length."""
        length = scaling.original_length / (times * 2 * math.pi)
        return head_dim * math.log(length) / (2 * math.log(base))

    first = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_that_turns(scaling.beta_slow)), head_dim - 1)
    pairs = torch.arange(head_dim // 2).float()
    return ((pairs - first) / max(last - first, 1e-3)).clamp(0, 1)
