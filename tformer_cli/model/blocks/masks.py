"""Who may attend to whom, as bool masks that broadcast to (B, H, T, S)."""

import torch
from torch import Tensor


def padding(mask: Tensor) -> Tensor:
    """Return (B, 1, 1, S) from (B, S): every query sees the real tokens."""
    return mask[:, None, None, :]


def causal(length: int, device: torch.device | None = None) -> Tensor:
    """Return (T, T): position t sees positions 0..t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def causal_lm_mask(source: int, target: int, device: torch.device | None = None) -> Tensor:
    """Return (S + T, S + T) for a source and its target: each token sees those before it."""
    return causal(source + target, device)


def prefix_lm_mask(source: int, target: int, device: torch.device | None = None) -> Tensor:
    """Return (S + T, S + T): source tokens see the whole source (Dong et al. 2019, section 2.2)."""
    mask = causal(source + target, device)
    mask[:source, :source] = True
    return mask


def combined(mask: Tensor) -> Tensor:
    """Return (B, 1, T, T) from (B, T): position t sees the real tokens among 0..t.

    The decoder itself never builds this: real tokens stand before padding, so the causal mask
    alone hides it from them.
    """
    return padding(mask) & causal(mask.shape[1], mask.device)
