"""Dropout (Srivastava et al. 2014) with masks that are cheap to draw on a CPU."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# torch draws one random number for each element on a CPU, which costs as much as the matrix
# products around it. A 64-bit number holds four decisions of 16 bits.
LEVELS = 1 << 16


class Dropout(nn.Module):
    """Sets a share of the elements to zero and scales the others up, in training only."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, states: Tensor) -> Tensor:
        """Return the states, dropped out while the module is in training."""
        return dropout(states, self.share) if self.training else states

    def extra_repr(self) -> str:
        return str(self.share)


def dropout(states: Tensor, share: float) -> Tensor:
    """Return the states with a share of them set to zero and the others divided by 1 - share.

    On a CPU the share is rounded to a multiple of 1/65536, and so is the divisor, so the expected
    value is exact.
    """
    if share == 0:
        return states
    if states.device.type != "cpu":
        return functional.dropout(states, share)
    dropped: Tensor = _CpuDropout.apply(states, share)  # type: ignore[no-untyped-call]
    return dropped


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, share: float) -> Tensor:
        threshold = round(share * LEVELS)
        numbers = torch.empty((states.numel() + 3) // 4, dtype=torch.int64)
        levels = numbers.random_(-(2**63), None).view(torch.int16)[: states.numel()]
        kept = levels >= threshold - LEVELS // 2
        scales = kept.to(states.dtype).mul_(LEVELS / (LEVELS - threshold)).view(states.shape)
        ctx.save_for_backward(scales)
        return states * scales

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (scales,) = ctx.saved_tensors
        return gradients[0] * scales, None
