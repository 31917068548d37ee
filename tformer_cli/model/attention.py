"""Multi-head attention (Vaswani et al. 2017, section 3.2)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.model import masks


class KeyValue(NamedTuple):
    """What attention looks at: keys and values, each (N, H, S, Dh)."""

    keys: Tensor
    values: Tensor


class View(NamedTuple):
    """How queries look at keys.

    Attributes:
        mask: bool, broadcasts to (N, H, T, S), True where a query may look; None is everywhere.
        bias: float, broadcasts likewise, added to the logits; None is zero.
        causal: query t sees keys 0..t only, as well as what `mask` says.
    """

    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False


# Up to so many weights the formula is faster on a CPU than torch's kernel: those of some hundred
# sentences.
MOST_WEIGHTS = 1 << 20
# Over fewer numbers than a vector register holds, torch's softmax takes several times as long,
# which is worth filling rows up where there are many of them.
VECTOR = 16
MANY_ROWS = 64


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, view: View, dropout: float = 0.0
) -> Tensor:
    """Return softmax(Q K^T / sqrt(Dh) + bias) V as (N, H, T, Dh), by the fastest way there is.

    Args:
        queries: (N, H, T, Dh).
        keys: (N, H, S, Dh).
        values: (N, H, S, Dh).
        view: which keys each query sees, and how.
        dropout: share of the attention weights set to zero.
    """
    num_weights = queries.shape[:3].numel() * keys.shape[2]
    is_small = queries.device.type == "cpu" and num_weights <= MOST_WEIGHTS
    way = naive_attend if is_small else kernel_attend
    return way(queries, keys, values, view, dropout)


def kernel_attend(
    queries: Tensor, keys: Tensor, values: Tensor, view: View, dropout: float
) -> Tensor:
    """Do as `attend` by torch's kernel, which never holds all weights at once."""
    is_causal = view.causal and view.mask is None and view.bias is None
    mask = None if is_causal else seen(view, queries.shape[2], queries.device)
    if view.bias is not None:
        mask = view.bias if mask is None else view.bias.masked_fill(~mask, -math.inf)
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
    )


def naive_attend(
    queries: Tensor, keys: Tensor, values: Tensor, view: View, dropout: float
) -> Tensor:
    """Do as `attend` by the formula."""
    weights = attention_weights(queries, keys, view)
    if dropout > 0:
        weights = functional.dropout(weights, dropout)
    return weights @ values


def attention_weights(queries: Tensor, keys: Tensor, view: View) -> Tensor:
    """Return softmax(Q K^T / sqrt(Dh) + bias) as (N, H, T, S), written out."""
    logits = queries / math.sqrt(queries.shape[-1]) @ keys.transpose(-2, -1)
    if view.bias is not None:
        logits = logits + view.bias
    mask = seen(view, queries.shape[2], queries.device)
    if mask is not None:
        # A small matrix to add, rather than a large one to fill in both directions.
        logits = logits + torch.zeros_like(mask, dtype=logits.dtype).masked_fill_(~mask, -math.inf)
    return softmax(logits)


def seen(view: View, length: int, device: torch.device) -> Tensor | None:
    """Return the mask of a view over `length` queries, its causality included; None is all."""
    if not view.causal:
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

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.dropout = dropout

    def queries(self, states: Tensor) -> Tensor:
        """Return the queries (N, H, T, Dh) of states (N, T, D)."""
        return split_heads(self.query(states), self.num_heads)

    def key_value(self, states: Tensor) -> KeyValue:
        """Return the keys and values of states (N, S, D)."""
        keys, values = self.key(states), self.value(states)
        return KeyValue(split_heads(keys, self.num_heads), split_heads(values, self.num_heads))

    def project(self, states: Tensor) -> tuple[Tensor, KeyValue]:
        """Return queries, and keys and values, of the same states (N, T, D)."""
        return self.queries(states), self.key_value(states)

    def forward(self, queries: Tensor, key_value: KeyValue, view: View) -> Tensor:
        """Return (N, T, D): what queries (N, H, T, Dh) find.

        Args:
            queries: (N, H, T, Dh).
            key_value: what they look at.
            view: which keys each query sees.
        """
        dropout = self.dropout if self.training else 0.0
        heads = attend(queries, key_value.keys, key_value.values, view, dropout)
        attended: Tensor = self.output(heads.transpose(1, 2).flatten(2))  # (N, T, D)
        return attended


class FusedAttention(Attention):
    """The same with one product for queries, keys and values of the same states.

    For weights that no longer change.
    """

    def __init__(self, parts: Attention) -> None:
        """Take over the weights of `parts`."""
        nn.Module.__init__(self)
        self.num_heads, self.dropout, self.output = parts.num_heads, parts.dropout, parts.output
        projections = (parts.query, parts.key, parts.value)
        weight = torch.cat([projection.weight.detach() for projection in projections])
        bias = torch.cat([projection.bias.detach() for projection in projections])
        self.projection = nn.Linear(weight.shape[1], len(weight), device="meta")
        self.projection.weight = nn.Parameter(weight, requires_grad=False)
        self.projection.bias = nn.Parameter(bias, requires_grad=False)

    def project(self, states: Tensor) -> tuple[Tensor, KeyValue]:
        """Return queries, and keys and values, of the same states (N, T, D)."""
        heads = split_heads(self.projection(states), 3 * self.num_heads)  # (N, 3 H, T, Dh)
        queries, keys, values = heads.chunk(3, dim=1)
        return queries, KeyValue(keys, values)


def split_heads(states: Tensor, num_heads: int) -> Tensor:
    """Return (N, H, T, Dh) from (N, T, H * Dh)."""
    return states.view(states.shape[0], states.shape[1], num_heads, -1).transpose(1, 2)
