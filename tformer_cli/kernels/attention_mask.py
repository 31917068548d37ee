"""Attention masks: which keys a query may attend to.

Bool masks broadcast to (N, H, T, S), True where a query may attend to a key.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class AttentionMask(NamedTuple):
    """What restricts attention; each member is optional.

    Attributes:
        mask: bool, broadcasts to (N, H, T, S), True where a query may attend.
        bias: float, broadcasts to (N, H, T, S), added to the logits.
        is_causal: query t attends to keys 0..t only, in addition to `mask`.
    """

    mask: Tensor | None = None
    bias: Tensor | None = None
    is_causal: bool = False

    def allowed(self, length: int, device: torch.device) -> Tensor | None:
        """Return `mask` and causality over `length` queries as one bool mask, or None."""
        if not self.is_causal:
            return self.mask
        lower = causal_mask(length, device)
        return lower if self.mask is None else self.mask & lower


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Return (T, T): position t attends to positions 0..t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zero where a bool mask is True, and minus infinity elsewhere."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -math.inf)


def padding_mask(mask: Tensor) -> Tensor:
    """Return (B, 1, 1, S) from (B, S): every query attends to the real tokens."""
    return mask[:, None, None, :]


def causal_lm_mask(source: int, target: int, device: torch.device | None = None) -> Tensor:
    """Return (S + T, S + T): source and target are one causal sequence."""
    return causal_mask(source + target, device)


def prefix_lm_mask(source: int, target: int, device: torch.device | None = None) -> Tensor:
    """Return (S + T, S + T): the source is bidirectional (Dong et al. 2019, section 2.2)."""
    mask = causal_mask(source + target, device)
    mask[:source, :source] = True
    return mask
