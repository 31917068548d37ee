"""Multi-head attention (Vaswani et al. 2017, section 3.2), grouped-query attention, and masks.

Bool masks broadcast to (B, H, T, S), True where a query may attend to a key.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.model.blocks.rotary import CosSin, apply_rotary_emb


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


def padding_mask(mask: Tensor) -> Tensor:
    """Return (B, 1, 1, S) from (B, S): every query attends to the real tokens."""
    return mask[:, None, None, :]


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Return (T, T): position t attends to positions 0..t."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def causal_lm_mask(source: int, target: int, device: torch.device | None = None) -> Tensor:
    """Return (S + T, S + T): source and target are one causal sequence."""
    return causal_mask(source + target, device)


def prefix_lm_mask(source: int, target: int, device: torch.device | None = None) -> Tensor:
    """Return (S + T, S + T): the source is bidirectional (Dong et al. 2019, section 2.2)."""
    mask = causal_mask(source + target, device)
    mask[:source, :source] = True
    return mask


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zero where a bool mask is True, and minus infinity elsewhere."""
    minus_infinity = torch.full((), -math.inf, dtype=dtype, device=mask.device)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, minus_infinity)


class KeyValue(NamedTuple):
    """Keys and values, each (N, Hkv, S, Dh)."""

    keys: Tensor
    values: Tensor


class KVShape(NamedTuple):
    """Shape of what the KV cache of a layer holds for a token."""

    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def size(self) -> int:
        """Numbers a token."""
        return self.num_heads * (self.key_dim + self.value_dim)


Attend = Callable[[Tensor, Tensor, Tensor, AttentionMask, float], Tensor]
"""An implementation of `attend`."""

# On a CPU the formula is faster than torch's kernel for up to so many attention weights, about
# those of some hundred sentences ...
MAX_NAIVE_WEIGHTS = 1 << 20
# ... but with very few weights the kernel is faster, since it is one operation.
MAX_TINY_WEIGHTS = 1 << 10
# torch's softmax over fewer numbers than a vector register holds takes several times as long.
# Padding pays where there are many rows.
VECTOR_SIZE = 16
MIN_PADDED_ROWS = 64


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
        logits = logits + torch.zeros_like(mask, dtype=logits.dtype).masked_fill_(~mask, -math.inf)
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


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last dimension."""
    missing = VECTOR_SIZE - logits.shape[-1]
    has_many_rows = logits.shape[:-1].numel() >= MIN_PADDED_ROWS
    if missing <= 0 or not has_many_rows or logits.device.type != "cpu":
        return logits.softmax(dim=-1)
    return functional.pad(logits, (0, missing), value=-math.inf).softmax(dim=-1)[..., :-missing]


class Attention(nn.Module):
    """Multi-head attention for self-attention and cross-attention.

    Queries and key-values are projected separately: key-values come from a KV cache, or are
    computed once for a source that many queries attend to.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_kv_heads: int,
        dropout: float,
        *,
        bias: bool,
        norm: Callable[[int], nn.Module] = nn.Identity,
    ) -> None:
        """Create the projections.

        Args:
            dim: D.
            num_heads: H.
            num_kv_heads: Hkv, a divisor of H.
            dropout: fraction of attention weights set to zero in training.
            bias: whether the projections have a bias.
            norm: of queries and keys, by head width (QK-norm, Henry et al. 2020).
        """
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        head_dim = dim // num_heads
        self.kv_shape = KVShape(num_kv_heads, head_dim, head_dim)
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)
        self.query_norm, self.key_norm = norm(head_dim), norm(head_dim)
        self.dropout = dropout
        self.attend: Attend = attend

    def project_q(self, hidden_states: Tensor) -> Tensor:
        """Return the queries (N, H, T, Dh) of hidden states (N, T, D)."""
        return split_heads(self.query(hidden_states), self.num_heads)

    def project_kv(self, hidden_states: Tensor) -> KeyValue:
        """Return the keys and values of hidden states (N, S, D)."""
        keys, values = self.key(hidden_states), self.value(hidden_states)
        return KeyValue(
            split_heads(keys, self.num_kv_heads), split_heads(values, self.num_kv_heads)
        )

    def project(self, hidden_states: Tensor) -> tuple[Tensor, KeyValue]:
        """Return queries and key-values of the same hidden states, without positions."""
        return self.project_q(hidden_states), self.project_kv(hidden_states)

    def project_qkv(self, hidden_states: Tensor, rotary: CosSin | None) -> tuple[Tensor, KeyValue]:
        """Return queries and key-values of self-attention over hidden states (N, T, D)."""
        queries, (keys, values) = self.project(hidden_states)
        keys = apply_rotary_emb(self.key_norm(keys), rotary)
        return apply_rotary_emb(self.query_norm(queries), rotary), KeyValue(keys, values)

    def forward(
        self, queries: Tensor, key_value: KeyValue, attention_mask: AttentionMask
    ) -> Tensor:
        """Return (N, T, D) for queries (N, H, T, Dh)."""
        dropout = self.dropout if self.training else 0.0
        heads = self.attend(queries, key_value.keys, key_value.values, attention_mask, dropout)
        attended: Tensor = self.output(heads.transpose(1, 2).flatten(2))  # (N, T, D)
        return attended

    def weights(
        self, queries: Tensor, key_value: KeyValue, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention weights of `forward`, (N, H, T, S), without dropout."""
        return attention_weights(queries, key_value.keys, attention_mask)

    def output_projections(self) -> tuple[nn.Linear, ...]:
        """Return the linear layers that scale the block's output, the last one last."""
        return self.value, self.output


def split_heads(hidden_states: Tensor, num_heads: int) -> Tensor:
    """Return (N, H, T, Dh) from (N, T, H * Dh)."""
    batch, length, _ = hidden_states.shape
    return hidden_states.view(batch, length, num_heads, -1).transpose(1, 2)
