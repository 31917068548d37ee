"""Multi-head latent attention, MLA (DeepSeek-AI 2024, section 2.1)."""

import math

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import LatentConfig
from tformer_cli.kernels.attention import Attend, attend, attention_weights
from tformer_cli.kernels.attention_mask import AttentionMask
from tformer_cli.model.blocks.attention import KeyValue, KVShape, split_heads
from tformer_cli.model.blocks.residual import RMSNorm
from tformer_cli.model.blocks.rotary import CosSin, apply_rotary_emb


class PerHead(nn.Linear):
    """Keys or values of each head from a latent: H linear maps from kv_lora_rank (R) to Dh."""

    def __init__(self, kv_lora_rank: int, num_heads: int, head_dim: int) -> None:
        super().__init__(kv_lora_rank, num_heads * head_dim, bias=False)
        self.num_heads = num_heads

    def matrices(self) -> Tensor:
        """Return the matrix of each head, (H, Dh, R)."""
        return self.weight.view(self.num_heads, -1, self.in_features)


class LatentAttention(nn.Module):
    """Self-attention over latents, one of width kv_lora_rank (R) for each token.

    Keys W c and values W c are never computed: the product of a query with W c is that of W^T q
    with the latent c (section 2.1.2), and a weighted sum of values is W times that of latents. So
    all heads attend to the same latents. Latents have no positions; each token also has one key of
    width rope_head_dim (Dr) with rotary positions, which all heads share (section 2.1.3).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        latent: LatentConfig,
        dropout: float,
        *,
        attention_factor: float,
        bias: bool,
        epsilon: float,
    ) -> None:
        """Create the projections.

        Args:
            dim: D.
            num_heads: H.
            latent: R and Dr.
            dropout: fraction of attention weights set to zero in training.
            attention_factor: of the rotary embedding, for queries over latents too.
            bias: whether the projections from and to hidden states have a bias.
            epsilon: of the norm of latents.
        """
        super().__init__()
        head_dim = dim // num_heads
        self.num_heads = num_heads
        self.dropout = dropout
        self.attend: Attend = attend
        self.attention_factor = attention_factor
        self.query_dims = [head_dim, latent.rope_head_dim]
        self.shared_dims = [latent.kv_lora_rank, latent.rope_head_dim]
        self.kv_shape = KVShape(1, latent.rope_head_dim, latent.kv_lora_rank)
        self.query = nn.Linear(dim, num_heads * sum(self.query_dims), bias=bias)
        self.down = nn.Linear(dim, sum(self.shared_dims), bias=bias)
        self.norm = RMSNorm(latent.kv_lora_rank, eps=epsilon)
        self.key = PerHead(latent.kv_lora_rank, num_heads, head_dim)
        self.value = PerHead(latent.kv_lora_rank, num_heads, head_dim)
        self.output = nn.Linear(dim, dim, bias=bias)
        # Logits are divided by the root of the width of keys without latents.
        self.scale = math.sqrt(sum(self.shared_dims) / sum(self.query_dims))

    def project_qkv(self, hidden_states: Tensor, rotary: CosSin | None) -> tuple[Tensor, KeyValue]:
        """Return queries (N, H, T, R + Dr), and what is cached of hidden states (N, T, D).

        Its keys are the rotary keys (N, 1, T, Dr), its values the latents (N, 1, T, R).
        """
        queries = split_heads(self.query(hidden_states), self.num_heads)
        queries, rotary_queries = torch.split(queries, self.query_dims, dim=-1)
        latents, keys = torch.split(self.down(hidden_states)[:, None], self.shared_dims, dim=-1)
        if rotary is not None:
            queries = queries * self.attention_factor**2
        over_latents = queries @ self.key.matrices()  # (N, H, T, R)
        rotary_queries = apply_rotary_emb(rotary_queries, rotary)
        queries = torch.cat((over_latents, rotary_queries), dim=-1) * self.scale
        return queries, KeyValue(apply_rotary_emb(keys, rotary), self.norm(latents))

    def forward(
        self, queries: Tensor, key_value: KeyValue, attention_mask: AttentionMask
    ) -> Tensor:
        """Return (N, T, D) for queries (N, H, T, R + Dr)."""
        dropout = self.dropout if self.training else 0.0
        keys, latents = latent_keys(key_value), key_value.values
        heads = self.attend(queries, keys, latents, attention_mask, dropout)  # (N, H, T, R)
        heads = heads @ self.value.matrices().mT  # (N, H, T, Dh)
        attended: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return attended

    def weights(
        self, queries: Tensor, key_value: KeyValue, attention_mask: AttentionMask
    ) -> Tensor:
        """Return the attention weights of `forward`, (N, H, T, S), without dropout."""
        return attention_weights(queries, latent_keys(key_value), attention_mask)

    def output_projections(self) -> tuple[nn.Linear, ...]:
        """Return the linear layers that scale the block's output, the last one last."""
        return self.value, self.output


def latent_keys(key_value: KeyValue) -> Tensor:
    """Return the keys of queries over latents, (N, 1, S, R + Dr)."""
    return torch.cat((key_value.values, key_value.keys), dim=-1)
