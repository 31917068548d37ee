"""Dropout (Srivastava et al. 2014) with masks that are cheap to draw on a CPU."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# On a CPU torch draws one random number for each element, which costs as much as the matrix
# products around it. One 64-bit number serves four elements, with 16 bits each.
LEVELS = 1 << 16


class Dropout(nn.Module):
    """Dropout with probability `p`, in training only."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the hidden states, with dropout in training."""
        return dropout(hidden_states, self.p) if self.training else hidden_states

    def extra_repr(self) -> str:
        return str(self.p)


def dropout(hidden_states: Tensor, p: float) -> Tensor:
    """Set elements to zero with probability `p`, and divide the others by 1 - p.

    On a CPU, `p` is rounded to a multiple of 1/65536 in both places, so the expected value is
    exact up to the rounding of 1 / (1 - p) to the number format of the hidden states.
    """
    if p == 0:
        return hidden_states
    if hidden_states.device.type != "cpu":
        return functional.dropout(hidden_states, p)
    dropped: Tensor = _CpuDropout.apply(hidden_states, p)  # type: ignore[no-untyped-call]
    return dropped


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_states: Tensor, p: float) -> Tensor:
        # However high `p` is, one level is kept.
        threshold = min(round(p * LEVELS), LEVELS - 1)
        numbers = torch.empty((hidden_states.numel() + 3) // 4, dtype=torch.int64)
        levels = numbers.random_(-(2**63), None).view(torch.int16)[: hidden_states.numel()]
        kept = levels >= threshold - LEVELS // 2
        scales = kept.to(hidden_states.dtype).mul_(LEVELS / (LEVELS - threshold))
        scales = scales.view(hidden_states.shape)
        ctx.save_for_backward(scales)
        return hidden_states * scales

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (scales,) = ctx.saved_tensors
        return gradients[0] * scales, None
