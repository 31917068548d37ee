"""Attention over heads (Vaswani et al. 2017, equation 1)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from tformer_cli.kernels.attention_mask import AttentionMask, additive_mask
from tformer_cli.kernels.softmax import softmax

Attend = Callable[[Tensor, Tensor, Tensor, AttentionMask, float], Tensor]
"""An implementation of `attend`."""

# On a CPU the formula is faster than torch's kernel for up to so many attention weights, about
# those of some hundred sentences ...
MAX_NAIVE_WEIGHTS = 1 << 20
# ... but with very few weights the kernel is faster, since it is one operation.
MAX_TINY_WEIGHTS = 1 << 10
# From so many sentences on, a CPU reads keys and values from memory: small matrices with gaps
# between them take three to five times as long there as contiguous ones.
MIN_BATCHED_ROWS = 16


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention_mask: AttentionMask,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(Q K^T / sqrt(Dh) + bias) V, (N, H, T, Dh), by the fastest implementation.

    Args:
        queries: (N, H, T, Dh).
        keys: (N, Hkv, S, Dh); each head serves H / Hkv consecutive query heads (grouped-query
            attention, Ainslie et al. 2023).
        values: (N, Hkv, S, Dh).
        attention_mask: which keys each query attends to.
        dropout: fraction of attention weights set to zero.
    """
    implementation = naive_attend
    if _prefers_kernel(queries, keys, values, dropout):
        implementation = kernel_attend
    return implementation(queries, keys, values, attention_mask, dropout)


def _prefers_kernel(queries: Tensor, keys: Tensor, values: Tensor, dropout: float) -> bool:
    device = queries.device.type
    if device != "cpu":
        # Up to torch 2.11 Apple's GPU mixes up the sentences of a batch and their masks.
        return device == "cuda"
    num_weights = queries.shape[:3].numel() * keys.shape[2]
    # The kernel copies keys that are not contiguous, and is slow with dropout and with keys and
    # values of different widths.
    is_slow = dropout > 0 or keys.stride(3) != 1 or keys.shape[3] != values.shape[3]
    is_tiny = num_weights <= MAX_TINY_WEIGHTS and not is_slow
    return is_tiny or num_weights > MAX_NAIVE_WEIGHTS


def arrange_keys(keys: Tensor) -> Tensor:
    """Return keys (N, Hkv, S, Dh), a transposed view, in the memory order that `attend` prefers."""
    # torch's kernels, which a GPU and a single sentence use, read token by token.
    is_read_by_token = len(keys) == 1 or keys.device.type == "cuda"
    return keys.contiguous() if is_read_by_token else keys


def prefers_contiguous(num_rows: int, device: torch.device) -> bool:
    """Return whether gaps between the keys of rows cost more than reading some unused ones."""
    return num_rows >= MIN_BATCHED_ROWS and device.type == "cpu"


def kernel_attend(
    queries: Tensor, keys: Tensor, values: Tensor, attention_mask: AttentionMask, dropout: float
) -> Tensor:
    """Attend by torch's kernel, which never materializes all attention weights."""
    bias = attention_mask.bias
    is_causal = attention_mask.is_causal and attention_mask.mask is None and bias is None
    mask = None if is_causal else attention_mask.allowed(queries.shape[2], queries.device)
    if bias is not None:
        bias = bias.to(queries.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    if mask is not None and mask.dim() == 3:
        # Only the kernel that materializes all weights takes three dimensions.
        mask = mask[None]
    group_size = queries.shape[1] // keys.shape[1]
    # A branch, for compiled code of any shape knows no value of a comparison.
    has_shared_heads = False
    if group_size > 1 and queries.device.type == "cuda":
        # On a GPU, most kernels do not take shared heads either.
        keys, values = (part.repeat_interleave(group_size, dim=1) for part in (keys, values))
    elif group_size > 1:
        has_shared_heads = True
    return functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=is_causal,
        enable_gqa=has_shared_heads,
    )


def naive_attend(
    queries: Tensor, keys: Tensor, values: Tensor, attention_mask: AttentionMask, dropout: float
) -> Tensor:
    """Attend by the formula."""
    weights = attention_weights(queries, keys, attention_mask)
    if dropout > 0:
        weights = functional.dropout(weights, dropout)
    return grouped_matmul(weights, values)


def attention_weights(queries: Tensor, keys: Tensor, attention_mask: AttentionMask) -> Tensor:
    """Return softmax(Q K^T / sqrt(Dh) + bias), (N, H, T, S)."""
    return softmax(attention_logits(queries, keys, attention_mask))


def attention_logits(queries: Tensor, keys: Tensor, attention_mask: AttentionMask) -> Tensor:
    """Return Q K^T / sqrt(Dh) + bias, (N, H, T, S), with minus infinity where masked."""
    logits = grouped_matmul(queries / math.sqrt(queries.shape[-1]), keys.transpose(-2, -1))
    if attention_mask.bias is not None:
        logits = logits + attention_mask.bias
    mask = attention_mask.allowed(queries.shape[2], queries.device)
    if mask is not None:
        # Adding a small matrix is cheaper than filling a large one, forward and backward.
        logits = logits + additive_mask(mask, logits.dtype)
    return logits


def grouped_matmul(heads: Tensor, shared: Tensor) -> Tensor:
    """Return products (N, H, T, E) of heads (N, H, T, A) and matrices (N, Hkv, A, E).

    Each matrix serves H / Hkv consecutive heads, whose rows are concatenated for the product.
    """
    num_rows, num_heads, length, width = heads.shape
    if shared.shape[1] == num_heads:
        return heads @ shared
    groups = heads.reshape(num_rows, shared.shape[1], -1, width)
    return (groups @ shared).view(num_rows, num_heads, length, -1)
