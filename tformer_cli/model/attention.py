"""Multi-head attention (Vaswani et al. 2017, section 3.2)."""

import math
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.model import masks
from tformer_cli.model.positions import Rotary


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


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, view: View, dropout: float = 0.0
) -> Tensor:
    """Return softmax(Q K^T / sqrt(Dh) + bias) V as (N, H, T, Dh), by the fastest kernel there is.

    Args:
        queries: (N, H, T, Dh).
        keys: (N, H, S, Dh).
        values: (N, H, S, Dh).
        view: which keys each query sees, and how.
        dropout: share of the attention weights set to zero.
    """
    mask, bias, is_causal = view
    if is_causal and (mask is not None or bias is not None):
        lower = masks.causal(queries.shape[2], queries.device)
        mask, is_causal = lower if mask is None else mask & lower, False
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
    )


def attention_weights(queries: Tensor, keys: Tensor, view: View) -> Tensor:
    """Return softmax(Q K^T / sqrt(Dh) + bias) as (N, H, T, S), written out."""
    logits = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
    if view.bias is not None:
        logits = logits + view.bias
    if view.mask is not None:
        logits = logits.masked_fill(~view.mask, -math.inf)
    if view.causal:
        logits = logits.masked_fill(~masks.causal(logits.shape[-1], logits.device), -math.inf)
    return logits.softmax(dim=-1)


def naive_attend(
    queries: Tensor, keys: Tensor, values: Tensor, view: View, dropout: float = 0.0
) -> Tensor:
    """Return the same as `attend`, by the formula."""
    weights = attention_weights(queries, keys, view)
    return functional.dropout(weights, dropout) @ values


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

    def key_value(
        self, states: Tensor, rotary: Rotary | None = None, positions: Tensor | None = None
    ) -> KeyValue:
        """Return the keys and values of states (N, S, D).

        Args:
            states: (N, S, D).
            rotary: turns the keys by `positions`, or None.
            positions: (S,) or (N, S), needed with rotary only.
        """
        keys = self._split(self.key(states))
        if rotary is not None:
            assert positions is not None
            keys = rotary(keys, positions)
        return KeyValue(keys, self._split(self.value(states)))

    def forward(
        self,
        states: Tensor,
        key_value: KeyValue,
        view: View,
        rotary: Rotary | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return (N, T, D): what the states (N, T, D) find at the keys.

        Args:
            states: (N, T, D), where the queries come from.
            key_value: what they look at.
            view: which keys each query sees.
            rotary: turns the queries by `positions`, or None.
            positions: (T,) or (N, T), needed with rotary only.
        """
        queries = self._split(self.query(states))
        if rotary is not None:
            assert positions is not None
            queries = rotary(queries, positions)
        dropout = self.dropout if self.training else 0.0
        heads = attend(queries, key_value.keys, key_value.values, view, dropout)
        attended: Tensor = self.output(heads.transpose(1, 2).flatten(2))  # (N, T, D)
        return attended

    def _split(self, states: Tensor) -> Tensor:
        heads = states.reshape(*states.shape[:2], self.num_heads, -1)
        return heads.transpose(1, 2)  # (N, H, T, Dh)
