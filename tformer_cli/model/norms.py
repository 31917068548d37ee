"""Normalisation layers by name."""

from typing import Literal

from torch import nn


def build_norm(kind: Literal["layer", "rms"], dim: int, epsilon: float) -> nn.Module:
    """Return LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over width `dim`."""
    if kind == "layer":
        return nn.LayerNorm(dim, eps=epsilon)
    return nn.RMSNorm(dim, eps=epsilon)
