"""Normalisation layers by name."""

from typing import Literal

from torch import nn


def build_norm(kind: Literal["layer", "rms"], dim: int, epsilon: float, *, bias: bool) -> nn.Module:
    """Return LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019).

    Args:
        kind: which of the two.
        dim: width of what is normalised.
        epsilon: added to the variance.
        bias: LayerNorm adds a trained vector; RMSNorm has none.
    """
    if kind == "layer":
        return nn.LayerNorm(dim, eps=epsilon, bias=bias)
    return nn.RMSNorm(dim, eps=epsilon)
