"""Normalization layers by name."""

from typing import Literal

from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + epsilon), times a trained scale (Zhang and Sennrich 2019, section 4)."""

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape, in the number format of the scale.

        What comes out of products in lower precision is normalized as exactly as all else.
        """
        return super().forward(states.to(self.weight.dtype))


def build_norm(kind: Literal["layer", "rms"], dim: int, epsilon: float, *, bias: bool) -> nn.Module:
    """Return LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019).

    Args:
        kind: which of the two.
        dim: width of what is normalized.
        epsilon: added to the variance.
        bias: LayerNorm adds a trained vector; RMSNorm has none.
    """
    if kind == "layer":
        return nn.LayerNorm(dim, eps=epsilon, bias=bias)
    return RMSNorm(dim, eps=epsilon)
