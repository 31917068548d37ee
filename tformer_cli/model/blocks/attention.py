"""Multi-head attention (Vaswani et al. 2017, section 3.2), some of whose heads may share keys."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.model.blocks import masks
from tformer_cli.model.blocks.linear import concatenate_linears
from tformer_cli.model.blocks.rotary import Turn, apply_rotary_emb


class KeyValue(NamedTuple):
    """What attention looks at: keys and values, each (N, Hkv, S, Dh)."""

    keys: Tensor
    values: Tensor


class KVShape(NamedTuple):
    """The numbers that a layer's attention keeps of a token.

    Attributes:
        num_heads: Hkv, heads of keys and values.
        key: width of a key.
        value: width of a value.
    """

    num_heads: int
    key: int
    value: int

    @property
    def size(self) -> int:
        """All of them."""
        return self.num_heads * (self.key + self.value)


class AttentionMask(NamedTuple):
    """How queries look at keys.

    Attributes:
        mask: bool, broadcasts to (N, H, T, S), True where a query may look; None is everywhere.
        bias: float, broadcasts likewise, added to the logits; None is zero.
        is_causal: query t sees keys 0..t only, as well as what `mask` says.
    """

    mask: Tensor | None = None
    bias: Tensor | None = None
    is_causal: bool = False


Attend = Callable[[Tensor, Tensor, Tensor, AttentionMask, float], Tensor]
"""A way to `attend`."""

# Up to so many weights the formula is faster on a CPU than torch's kernel: those of some hundred
# sentences.
MAX_NAIVE_WEIGHTS = 1 << 20
# And so few that the kernel is faster again, for it is one operation: those of a sentence or two.
MAX_TINY_WEIGHTS = 1 << 10
# Over fewer numbers than a vector register holds, torch's softmax takes several times as long,
# which is worth filling rows up where there are many of them.
VECTOR = 16
MANY_ROWS = 64


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, view: AttentionMask, dropout: float = 0.0
) -> Tensor:
    """Return softmax(Q K^T / sqrt(Dh) + bias) V as (N, H, T, Dh), by the fastest way there is.

    Args:
        queries: (N, H, T, Dh).
        keys: (N, Hkv, S, Dh), each for H / Hkv heads in a row (Ainslie et al. 2023).
        values: likewise.
        view: which keys each query sees, and how.
        dropout: share of the attention weights set to zero.
    """
    way = kernel_attend if _suits_kernel(queries, keys, values, dropout) else naive_attend
    return way(queries, keys, values, view, dropout)


def _suits_kernel(queries: Tensor, keys: Tensor, values: Tensor, dropout: float) -> bool:
    device = queries.device.type
    if device != "cpu":
        # Up to torch 2.11 Apple's GPU mixes up the sentences of a batch and their masks.
        return device == "cuda"
    num_weights = queries.shape[:3].numel() * keys.shape[2]
    # The kernel copies keys that do not lie one after the other, and has a slow way for dropout and
    # for keys and values of two widths.
    is_slow = dropout > 0 or keys.stride(3) != 1 or keys.shape[3] != values.shape[3]
    is_tiny = num_weights <= MAX_TINY_WEIGHTS and not is_slow
    return is_tiny or num_weights > MAX_NAIVE_WEIGHTS


def kernel_attend(
    queries: Tensor, keys: Tensor, values: Tensor, view: AttentionMask, dropout: float
) -> Tensor:
    """Do as `attend` by torch's kernel, which never holds all weights at once."""
    is_causal = view.is_causal and view.mask is None and view.bias is None
    mask = None if is_causal else seen(view, queries.shape[2], queries.device)
    if view.bias is not None:
        bias = view.bias.to(queries.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    if mask is not None and mask.dim() == 3:
        # Of three dimensions, only a kernel that holds all weights takes it.
        mask = mask[None]
    shares = queries.shape[1] // keys.shape[1]
    if shares > 1 and queries.device.type == "cuda":
        # Likewise of keys that heads share, on a GPU, unless all is as one of its kernels wants it.
        keys, values = (each.repeat_interleave(shares, dim=1) for each in (keys, values))
    return functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=is_causal,
        enable_gqa=keys.shape[1] != queries.shape[1],
    )


def naive_attend(
    queries: Tensor, keys: Tensor, values: Tensor, view: AttentionMask, dropout: float
) -> Tensor:
    """Do as `attend` by the formula."""
    weights = attention_weights(queries, keys, view)
    if dropout > 0:
        weights = functional.dropout(weights, dropout)
    return grouped_matmul(weights, values)


def attention_weights(queries: Tensor, keys: Tensor, view: AttentionMask) -> Tensor:
    """Return softmax(Q K^T / sqrt(Dh) + bias) as (N, H, T, S), written out."""
    return softmax(attention_logits(queries, keys, view))


def attention_logits(queries: Tensor, keys: Tensor, view: AttentionMask) -> Tensor:
    """Return Q K^T / sqrt(Dh) + bias as (N, H, T, S), minus infinity where nothing is seen."""
    logits = grouped_matmul(queries / math.sqrt(queries.shape[-1]), keys.transpose(-2, -1))
    if view.bias is not None:
        logits = logits + view.bias
    mask = seen(view, queries.shape[2], queries.device)
    if mask is not None:
        # A small matrix to add, rather than a large one to fill in both directions.
        logits = logits + torch.zeros_like(mask, dtype=logits.dtype).masked_fill_(~mask, -math.inf)
    return logits


def grouped_matmul(heads: Tensor, shared: Tensor) -> Tensor:
    """Return products (N, H, T, E) of heads (N, H, T, A) with matrices (N, Hkv, A, E).

    Each matrix serves H / Hkv heads in a row, which are laid under each other for it.
    """
    num_rows, num_heads, length, width = heads.shape
    if shared.shape[1] == num_heads:
        return heads @ shared
    groups = heads.reshape(num_rows, shared.shape[1], -1, width)
    return (groups @ shared).view(num_rows, num_heads, length, -1)


def seen(view: AttentionMask, length: int, device: torch.device) -> Tensor | None:
    """Return the mask of a view over `length` queries, its causality included; None is all."""
    if not view.is_causal:
        return view.mask
    lower = masks.causal(length, device)
    return lower if view.mask is None else view.mask & lower


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last dimension."""
    missing = VECTOR - logits.shape[-1]
    has_many_rows = logits.shape[:-1].numel() >= MANY_ROWS
    if missing <= 0 or not has_many_rows or logits.device.type != "cpu":
        return logits.softmax(dim=-1)
    return functional.pad(logits, (0, missing), value=-math.inf).softmax(dim=-1)[..., :-missing]


class Attention(nn.Module):
    """Projects queries, keys and values, attends with each head, and projects back.

    Keys and values are made apart from the queries, so that they can come from a cache, or be
    made once from a memory that many queries look at.
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
        """Build the projections.

        Args:
            dim: D.
            num_heads: H.
            num_kv_heads: Hkv, a divisor of H.
            dropout: share of the attention weights set to zero in training.
            bias: whether the projections add a vector.
            norm: makes what queries and keys of a head's width go through (Henry et al. 2020).
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

    def project_q(self, states: Tensor) -> Tensor:
        """Return the queries (N, H, T, Dh) of states (N, T, D)."""
        return split_heads(self.query(states), self.num_heads)

    def project_kv(self, states: Tensor) -> KeyValue:
        """Return the keys and values of states (N, S, D)."""
        keys, values = self.key(states), self.value(states)
        return KeyValue(
            split_heads(keys, self.num_kv_heads), split_heads(values, self.num_kv_heads)
        )

    def projected(self, states: Tensor) -> tuple[Tensor, KeyValue]:
        """Return queries, and keys and values, of the same states (N, T, D)."""
        return self.project_q(states), self.project_kv(states)

    def project_qkv(self, states: Tensor, turn: Turn | None) -> tuple[Tensor, KeyValue]:
        """Return queries, and keys and values, of self-attention over states (N, T, D).

        Args:
            states: (N, T, D).
            turn: of each place, where positions are rotary.
        """
        queries, (keys, values) = self.projected(states)
        keys = apply_rotary_emb(self.key_norm(keys), turn)
        return apply_rotary_emb(self.query_norm(queries), turn), KeyValue(keys, values)

    def forward(self, queries: Tensor, key_value: KeyValue, view: AttentionMask) -> Tensor:
        """Return (N, T, D): what queries (N, H, T, Dh) find.

        Args:
            queries: (N, H, T, Dh).
            key_value: what they look at.
            view: which keys each query sees.
        """
        dropout = self.dropout if self.training else 0.0
        heads = self.attend(queries, key_value.keys, key_value.values, view, dropout)
        attended: Tensor = self.output(heads.transpose(1, 2).flatten(2))  # (N, T, D)
        return attended

    def weights(self, queries: Tensor, key_value: KeyValue, view: AttentionMask) -> Tensor:
        """Return where `forward` looks, (N, H, T, S), before any dropout."""
        return attention_weights(queries, key_value.keys, view)

    def output_projections(self) -> tuple[nn.Linear, ...]:
        """Return the maps that what the block adds goes through, the last one at the end."""
        return self.value, self.output

    def fused(self) -> "Attention":
        """Return the same for weights that no longer change, with less to do."""
        return FusedAttention(self)


class FusedAttention(Attention):
    """The same with one product for queries, keys and values of the same states.

    For weights that no longer change.
    """

    def __init__(self, parts: Attention) -> None:
        """Take over the weights of `parts`."""
        nn.Module.__init__(self)
        self.num_heads, self.num_kv_heads = parts.num_heads, parts.num_kv_heads
        self.dropout, self.output, self.kv_shape = parts.dropout, parts.output, parts.kv_shape
        self.attend = parts.attend
        self.query_norm, self.key_norm = parts.query_norm, parts.key_norm
        self.projection = concatenate_linears(parts.query, parts.key, parts.value)

    def projected(self, states: Tensor) -> tuple[Tensor, KeyValue]:
        """Return queries, and keys and values, of the same states (N, T, D)."""
        own, shared = self.num_heads, self.num_kv_heads
        heads = split_heads(self.projection(states), own + 2 * shared)  # (N, H + 2 Hkv, T, Dh)
        keys, values = heads.narrow(1, own, shared), heads.narrow(1, own + shared, shared)
        return heads.narrow(1, 0, own), KeyValue(keys, values)


def split_heads(states: Tensor, num_heads: int) -> Tensor:
    """Return (N, H, T, Dh) from (N, T, H * Dh)."""
    return states.view(states.shape[0], states.shape[1], num_heads, -1).transpose(1, 2)
