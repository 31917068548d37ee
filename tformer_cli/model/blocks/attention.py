"""Multi-head attention (Vaswani et al. 2017, section 3.2), and grouped-query attention."""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from tformer_cli.kernels.attention import Attend, attend, attention_weights
from tformer_cli.kernels.attention_mask import AttentionMask
from tformer_cli.model.blocks.rotary import CosSin, apply_rotary_emb


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
        head_dim: int,
        dropout: float,
        *,
        bias: bool,
        norm: Callable[[int], nn.Module] = nn.Identity,
        scale: float | None = None,
    ) -> None:
        """Create the projections.

        Args:
            dim: D.
            num_heads: H.
            num_kv_heads: Hkv, a divisor of H.
            head_dim: Dh.
            dropout: fraction of attention weights set to zero in training.
            bias: whether the projections have a bias.
            norm: of queries and keys, by head width (QK-norm, Henry et al. 2020).
            scale: of attention logits; None for 1 / sqrt(Dh).
        """
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        # `attend` divides by sqrt(Dh).
        self.query_scale = None if scale is None else scale * math.sqrt(head_dim)
        self.kv_shape = KVShape(num_kv_heads, head_dim, head_dim)
        self.query = nn.Linear(dim, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.output = nn.Linear(num_heads * head_dim, dim, bias=bias)
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
        queries = self._scaled(queries)
        heads = self.attend(queries, key_value.keys, key_value.values, attention_mask, dropout)
        attended: Tensor = self.output(heads.transpose(1, 2).flatten(2))  # (N, T, D)
        return attended

    def weights(
        self, queries: Tensor, key_value: KeyValue, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention weights of `forward`, (N, H, T, S), without dropout."""
        return attention_weights(self._scaled(queries), key_value.keys, attention_mask)

    def _scaled(self, queries: Tensor) -> Tensor:
        return queries if self.query_scale is None else queries * self.query_scale

    def output_projections(self) -> tuple[nn.Linear, ...]:
        """Return the linear layers that scale the block's output, the last one last."""
        return self.value, self.output


def split_heads(hidden_states: Tensor, num_heads: int) -> Tensor:
    """Return (N, H, T, Dh) from (N, T, H * Dh)."""
    batch, length, _ = hidden_states.shape
    return hidden_states.view(batch, length, num_heads, -1).transpose(1, 2)
