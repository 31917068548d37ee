"""Softmax and its parts: on a CPU by exp2, and in rows as long as a vector register."""

import math

import torch
from torch import Tensor
from torch.nn import functional

# torch's softmax over fewer numbers than a vector register holds takes several times as long.
# Padding pays where there are many rows.
VECTOR_SIZE = 16
MIN_PADDED_ROWS = 64
# Logits of so many rows stay in the cache of a core between two passes over them.
ROWS_AT_ONCE = 32
# On a CPU torch computes exp2 in a third of the time of exp.
LOG2_E = math.log2(math.e)
# Sums with a logarithm beyond it are computed again; the logarithm of the largest float32 is 88.
MAX_LOG_SUM = 60.0


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last dimension."""
    missing = VECTOR_SIZE - logits.shape[-1]
    has_many_rows = logits.shape[:-1].numel() >= MIN_PADDED_ROWS
    if missing <= 0 or not has_many_rows or logits.device.type != "cpu":
        return logits.softmax(dim=-1)
    return functional.pad(logits, (0, missing), value=-math.inf).softmax(dim=-1)[..., :-missing]


def log_softmax(logits: Tensor) -> Tensor:
    """Return log probabilities (..., V) in float32, or in float64 for logits in float64."""
    return _at_least_float32(logits) - logsumexp(logits)[..., None]


def logsumexp(logits: Tensor) -> Tensor:
    """Return log(sum(exp(logits))) (...) over the vocabulary of logits (..., V)."""
    if logits.device.type != "cpu":
        return _at_least_float32(logits).logsumexp(dim=-1)
    parts = torch.split(logits.flatten(0, -2), ROWS_AT_ONCE)
    sums = [(_at_least_float32(part) * LOG2_E).exp2_().sum(dim=-1) for part in parts]
    norms = torch.cat(sums).log()
    # The maximum needs to be subtracted only where a sum comes near the limits of float32.
    is_extreme = ~(norms.abs() < MAX_LOG_SUM)
    if bool(is_extreme.any()):
        exact = torch.cat([_at_least_float32(part).logsumexp(dim=-1) for part in parts])
        norms = exact.where(is_extreme, norms)
    return norms.view(logits.shape[:-1])


def exp_(powers: Tensor) -> Tensor:
    """Raise e to these powers, and overwrite them."""
    if powers.dtype == torch.float32 and powers.device.type == "cpu":
        # In bfloat16 the product would lose digits.
        return powers.mul_(LOG2_E).exp2_()
    return powers.exp_()


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
