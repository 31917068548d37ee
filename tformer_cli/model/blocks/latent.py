"""Multi-head latent attention (DeepSeek-AI 2024, section 2.1): keys and values from a latent."""

import math

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import LatentConfig
from tformer_cli.model.blocks.attention import (
    Attend,
    AttentionMask,
    KeyValue,
    KVShape,
    attend,
    attention_weights,
    split_heads,
)
from tformer_cli.model.blocks.norms import RMSNorm
from tformer_cli.model.blocks.rotary import Turn, apply_rotary_emb, sharpened


class PerHead(nn.Linear):
    """Keys or values of each head from a latent: H maps from width R to Dh."""

    def __init__(self, latent_dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__(latent_dim, num_heads * head_dim, bias=False)
        self.num_heads = num_heads

    def maps(self) -> Tensor:
        """Return the map of each head, (H, Dh, R)."""
        return self.weight.view(self.num_heads, -1, self.in_features)


class LatentAttention(nn.Module):
    """Self-attention whose keys and values are products of one narrow latent a token.

    A query's product with a key W c is that of W^T times the query with c (section 2.1.2), and a
    weighted sum of values W c is W times that of latents. So heads look at latents, which all of
    them share, and keys and values are never made. Latents do not know where they stand: each
    token has one more key, which all heads share, that rotary positions turn (section 2.1.3).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        latent: LatentConfig,
        dropout: float,
        *,
        bias: bool,
        epsilon: float,
    ) -> None:
        """Build the projections.

        Args:
            dim: D.
            num_heads: H.
            latent: widths of the latent (R) and of the key that is turned (Dr).
            dropout: share of the attention weights set to zero in training.
            bias: whether the projections from and to the states add a vector.
            epsilon: added to the variance of latents.
        """
        super().__init__()
        head_dim = dim // num_heads
        self.num_heads = num_heads
        self.dropout = dropout
        self.attend: Attend = attend
        self.widths = [head_dim, latent.rope_head_dim]
        self.shared_widths = [latent.kv_lora_rank, latent.rope_head_dim]
        self.kv_shape = KVShape(1, latent.rope_head_dim, latent.kv_lora_rank)
        self.query = nn.Linear(dim, num_heads * sum(self.widths), bias=bias)
        self.down = nn.Linear(dim, sum(self.shared_widths), bias=bias)
        self.norm = RMSNorm(latent.kv_lora_rank, eps=epsilon)
        self.key = PerHead(latent.kv_lora_rank, num_heads, head_dim)
        self.value = PerHead(latent.kv_lora_rank, num_heads, head_dim)
        self.output = nn.Linear(dim, dim, bias=bias)
        # Logits are divided by the root of the width of keys as they were before the latent.
        self.scale = math.sqrt(sum(self.shared_widths) / sum(self.widths))

    def project_qkv(self, states: Tensor, turn: Turn | None) -> tuple[Tensor, KeyValue]:
        """Return queries over latents, and what is cached of states (N, T, D).

        Args:
            states: (N, T, D).
            turn: of each place.

        Returns:
            Queries (N, H, T, R + Dr); keys are what is turned (N, 1, T, Dr), values the latents
            (N, 1, T, R).
        """
        queries = split_heads(self.query(states), self.num_heads)
        queries, rotary_queries = torch.split(queries, self.widths, dim=-1)
        latents, keys = torch.split(self.down(states)[:, None], self.shared_widths, dim=-1)
        over_latents = sharpened(queries, turn) @ self.key.maps()  # (N, H, T, R)
        queries = (
            torch.cat((over_latents, apply_rotary_emb(rotary_queries, turn)), dim=-1) * self.scale
        )
        return queries, KeyValue(apply_rotary_emb(keys, turn), self.norm(latents))

    def forward(self, queries: Tensor, key_value: KeyValue, view: AttentionMask) -> Tensor:
        """Return (N, T, D): what queries (N, H, T, R + Dr) find.

        Args:
            queries: as `look` makes them.
            key_value: likewise.
            view: which keys each query sees.
        """
        dropout = self.dropout if self.training else 0.0
        latents = key_value.values
        found = self.attend(queries, latent_keys(key_value), latents, view, dropout)  # (N, H, T, R)
        heads = found @ self.value.maps().mT  # (N, H, T, Dh)
        attended: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return attended

    def weights(self, queries: Tensor, key_value: KeyValue, view: AttentionMask) -> Tensor:
        """Return where `forward` looks, (N, H, T, S), before any dropout."""
        return attention_weights(queries, latent_keys(key_value), view)

    def output_projections(self) -> tuple[nn.Linear, ...]:
        """Return the maps that what the block adds goes through, the last one at the end."""
        return self.value, self.output

    def fused(self) -> "LatentAttention":
        """Return the same: there is nothing to fuse."""
        return self


def latent_keys(key_value: KeyValue) -> Tensor:
    """Return what queries over latents are multiplied with, (N, 1, S, R + Dr)."""
    return torch.cat((key_value.values, key_value.keys), dim=-1)
