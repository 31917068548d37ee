"""Latent attention against transformers' DeepSeek-V2, and against the equations of its paper."""

import math

import pytest
import torch
from model.parity import assert_same, called, loaded, randomized, renamed
from torch import Tensor, nn
from transformers import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import (
    DeepseekV2Attention,
    DeepseekV2RotaryEmbedding,
)

from tformer_cli.config.schema.model import LatentConfig, RotaryPositions, YarnScaling
from tformer_cli.kernels.attention_mask import AttentionMask, causal_mask
from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.blocks.latent import LatentAttention
from tformer_cli.model.blocks.rotary import RotaryEmbedding, apply_rotary_emb, attention_factor

B, T, D, H, R, DR = 2, 7, 12, 3, 5, 6
DH = D // H
# Norms, softmax and angles are computed in float32 over there, whatever the states are.
NEAR = {"rtol": 1e-4, "atol": 1e-5}

PLAIN = RotaryPositions(base=100.0)
ROPES = {
    "plain": ({"rope_type": "default", "rope_theta": 100.0}, PLAIN),
    "yarn": (
        {
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            # All logits are sharpened, rather than what is turned alone.
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        RotaryPositions(base=100.0, scaling=YarnScaling(factor=8.0, original_length=32)),
    ),
}


def deepseek(rope_parameters: dict[str, object]) -> DeepseekV2Config:
    return DeepseekV2Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=H,
        q_lora_rank=None,
        kv_lora_rank=R,
        qk_nope_head_dim=DH,
        qk_rope_head_dim=DR,
        v_head_dim=DH,
        max_position_embeddings=256,
        rope_parameters=rope_parameters,
        attn_implementation="eager",
    )


def latent_attention(positions: RotaryPositions = PLAIN, *, bias: bool = False) -> LatentAttention:
    latent = LatentConfig(kv_lora_rank=R, rope_head_dim=DR)
    ours = LatentAttention(
        D, H, latent, 0.0, attention_factor=attention_factor(positions), bias=bias, epsilon=1e-6
    )
    return randomized(ours).double()


def half_by_half(rows: Tensor) -> Tensor:
    """Return rows (..., DR, D) of neighbouring pairs as those of pairs laid out half by half."""
    return torch.cat((rows[..., 0::2, :], rows[..., 1::2, :]), dim=-2)


def weights_of(theirs: DeepseekV2Attention) -> dict[str, Tensor]:
    queries, rotary_queries = theirs.q_proj.weight.view(H, DH + DR, D).split([DH, DR], dim=1)
    latents, rotary_keys = theirs.kv_a_proj_with_mqa.weight.split([R, DR])
    keys, values = theirs.kv_b_proj.weight.view(H, 2 * DH, R).split([DH, DH], dim=1)
    return renamed(theirs, {"norm": "kv_a_layernorm", "output": "o_proj"}) | {
        "query.weight": torch.cat((queries, half_by_half(rotary_queries)), dim=1).flatten(0, 1),
        "down.weight": torch.cat((latents, half_by_half(rotary_keys))),
        "key.weight": keys.flatten(0, 1),
        "value.weight": values.flatten(0, 1),
    }


@pytest.mark.parametrize("rope", ROPES)
def test_latent_attention_equals_that_of_deepseek_with_gradients(rope):
    rope_parameters, positions = ROPES[rope]
    config = deepseek(rope_parameters)
    theirs = randomized(DeepseekV2Attention(config, 0)).double()
    ours, weights = latent_attention(positions), weights_of(theirs)
    states = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    indices = torch.arange(T)
    turn = RotaryEmbedding(DR, positions)(indices)
    queries, kept = called(ours, weights, states, turn, method="project_qkv")
    said = called(ours, weights, queries, kept, AttentionMask(is_causal=True))
    hidden = torch.full((T, T), torch.finfo(torch.float32).min).triu(1)[None, None]
    expected, _ = theirs(
        states,
        attention_mask=hidden,
        position_embeddings=DeepseekV2RotaryEmbedding(config)(states, indices[None]),
    )
    assert_same(said, expected, [states, *theirs.parameters()], **NEAR)
    alone = loaded(latent_attention(positions), weights)
    steps = step_by_step(alone, states.detach(), RotaryEmbedding(DR, positions))
    torch.testing.assert_close(steps, expected, **NEAR)


@torch.no_grad()
def step_by_step(attention: LatentAttention, states: Tensor, rotary: RotaryEmbedding) -> Tensor:
    """Return (B, T, D): each token looks at what is kept of those before it, and itself."""
    kept: list[KeyValue] = []
    said = []
    for position in range(T):
        turn = rotary(torch.tensor([position]))
        queries, new = attention.project_qkv(states[:, position : position + 1], turn)
        kept.append(new)
        past = KeyValue(*(torch.cat(parts, dim=2) for parts in zip(*kept, strict=True)))
        said.append(attention(queries, past, AttentionMask()))
    return torch.cat(said, dim=1)


def by_the_paper(ours: LatentAttention, states: Tensor, rotary: RotaryEmbedding) -> Tensor:
    """Return what attention finds, with keys and values of each head (DeepSeek-AI 2024, 2.1)."""
    turn = rotary(torch.arange(T))
    latents = ours.norm(nn.functional.linear(states, ours.down.weight[:R], ours.down.bias[:R]))
    shared = nn.functional.linear(states, ours.down.weight[R:], ours.down.bias[R:])
    shared = apply_rotary_emb(shared[:, None], turn)[:, 0]
    found = []
    for head in range(H):
        rows = slice(head * (DH + DR), (head + 1) * (DH + DR))
        own = slice(head * DH, (head + 1) * DH)
        query = nn.functional.linear(states, ours.query.weight[rows], ours.query.bias[rows])
        query = torch.cat(
            (query[..., :DH], apply_rotary_emb(query[:, None, :, DH:], turn)[:, 0]), dim=-1
        )
        key = torch.cat((latents @ ours.key.weight[own].T, shared), dim=-1)
        value = latents @ ours.value.weight[own].T
        logits = query @ key.mT / math.sqrt(DH + DR)
        weights = logits.masked_fill(~causal_mask(T), -math.inf).softmax(dim=-1)
        found.append(weights @ value)
    return ours.output(torch.cat(found, dim=-1))


def test_latent_attention_follows_the_paper_with_gradients():
    ours, rotary = latent_attention(bias=True), RotaryEmbedding(DR, RotaryPositions(base=100.0))
    rotary.double()
    states = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    queries, kept = ours.project_qkv(states, rotary(torch.arange(T)))
    said = ours(queries, kept, AttentionMask(is_causal=True))
    expected = by_the_paper(ours, states, rotary)
    assert_same(said, expected, [states, *ours.parameters()])
    torch.testing.assert_close(step_by_step(ours, states.detach(), rotary), said.detach())


def test_what_is_kept_of_a_token_is_a_latent_and_a_shared_key():
    ours = latent_attention()
    turn = RotaryEmbedding(DR, RotaryPositions())(torch.arange(T))
    _, kept = ours.project_qkv(torch.randn(B, T, D, dtype=torch.float64), turn)
    assert ours.kv_shape.size == R + DR
    assert [part.shape for part in kept] == [(B, 1, T, DR), (B, 1, T, R)]
