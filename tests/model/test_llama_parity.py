"""Rotary positions, shared keys, RMSNorm and SwiGLU against transformers' Llama and Qwen."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model.parity import assert_same, called, loaded, randomized, renamed, under
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    LinearScaling,
    NtkScaling,
    RotaryPositions,
    YarnScaling,
)
from tformer_cli.kernels.attention_mask import AttentionMask, causal_mask
from tformer_cli.model.blocks.residual import DeepNorm
from tformer_cli.model.blocks.rotary import RotaryEmbedding
from tformer_cli.model.build import build_model
from tformer_cli.model.layers import EncoderLayer, build_self_attention

B, S, T, V, D, H, F = 2, 5, 7, 23, 24, 6, 17
# Norms, softmax and angles are computed in float32 over there, whatever the states are.
NEAR = {"rtol": 1e-4, "atol": 1e-5}
HIDDEN = torch.finfo(torch.float32).min

bases = st.sampled_from([50.0, 10000.0, 500000.0])
factors = st.floats(1.0, 64.0)
widths = st.sampled_from([4, 6, 16, 64, 128])


def llama(**changes) -> LlamaConfig:
    """Return a small Llama; by default its positions go on as they begin."""
    defaults = {
        "vocab_size": V,
        "hidden_size": D,
        "intermediate_size": F,
        "num_hidden_layers": 2,
        "num_attention_heads": H,
        "head_dim": D // H,
        "rms_norm_eps": 1e-6,
        "attn_implementation": "eager",
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }
    return LlamaConfig(**(defaults | changes))


def ours_of(num_kv_heads: int, positions: RotaryPositions, **changes) -> DecoderOnlyConfig:
    return DecoderOnlyConfig(
        dim=D,
        num_heads=H,
        num_kv_heads=num_kv_heads,
        num_layers=2,
        feedforward_dim=F,
        activation="swiglu",
        norm="rms",
        positions=positions,
        dropout=0.0,
        tie_embeddings="none",
        **changes,
    )


def assert_turns_alike(
    width: int, ours: RotaryPositions, num_positions: int = 90, **theirs
) -> None:
    reference = LlamaRotaryEmbedding(llama(head_dim=width, **theirs))
    cosines, sines = reference(torch.ones(1), torch.arange(num_positions)[None])
    turn = RotaryEmbedding(width, ours)(torch.arange(num_positions))
    torch.testing.assert_close(turn[0], cosines[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(turn[1], sines[0], rtol=0, atol=1e-4)


@given(widths, bases)
def test_turns_equal_those_of_llama(width, base):
    rope = {"rope_type": "default", "rope_theta": base}
    assert_turns_alike(width, RotaryPositions(base=base), rope_parameters=rope)


@given(widths, bases, factors)
def test_linear_scaling_equals_that_of_transformers(width, base, factor):
    ours = RotaryPositions(base=base, scaling=LinearScaling(factor=factor))
    rope = {"rope_type": "linear", "rope_theta": base, "factor": factor}
    assert_turns_alike(width, ours, rope_parameters=rope)


@given(widths, bases, factors, st.integers(20, 80))
def test_ntk_scaling_equals_dynamic_scaling_at_a_length_of_the_same_factor(
    width, base, theirs, original
):
    num_positions = 90
    factor = theirs * num_positions / original - (theirs - 1)
    ours = RotaryPositions(base=base, scaling=NtkScaling(factor=factor))
    rope = {"rope_type": "dynamic", "rope_theta": base, "factor": theirs}
    assert_turns_alike(
        width, ours, num_positions, rope_parameters=rope, max_position_embeddings=original
    )


@given(widths, bases, factors, st.integers(7, 4096), st.sampled_from([(32.0, 1.0), (8.0, 0.5)]))
def test_yarn_equals_that_of_transformers(width, base, factor, original, limits):
    fast, slow = limits
    scaling = YarnScaling(factor=factor, original_length=original, beta_fast=fast, beta_slow=slow)
    rope = {
        "rope_type": "yarn",
        "rope_theta": base,
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": fast,
        "beta_slow": slow,
    }
    assert_turns_alike(width, RotaryPositions(base=base, scaling=scaling), rope_parameters=rope)


ROPES = {
    "plain": ({"rope_type": "default", "rope_theta": 100.0}, RotaryPositions(base=100.0)),
    "yarn": (
        {
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        RotaryPositions(base=100.0, scaling=YarnScaling(factor=4.0, original_length=32)),
    ),
}


def weights_of(layer: nn.Module) -> dict[str, Tensor]:
    """Return the weights of our layer that is the same."""
    names = {
        "self_attention.query": "self_attn.q_proj",
        "self_attention.key": "self_attn.k_proj",
        "self_attention.value": "self_attn.v_proj",
        "self_attention.output": "self_attn.o_proj",
        "self_attention_norm": "input_layernorm",
        "feedforward.gate": "mlp.gate_proj",
        "feedforward.up": "mlp.up_proj",
        "feedforward.down": "mlp.down_proj",
        "feedforward_norm": "post_attention_layernorm",
    }
    return renamed(layer, names)


def causal_bias() -> Tensor:
    return torch.zeros(T, T).masked_fill(~causal_mask(T), HIDDEN)[None, None]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6])
def test_layer_equals_that_of_llama_with_gradients(num_kv_heads, rope, bias):
    rope_parameters, positions = ROPES[rope]
    config = llama(
        num_key_value_heads=num_kv_heads,
        rope_parameters=rope_parameters,
        attention_bias=bias,
        mlp_bias=bias,
    )
    theirs = randomized(LlamaDecoderLayer(config, 0)).double()
    ours = EncoderLayer(ours_of(num_kv_heads, positions, bias=bias), DeepNorm.for_stack(1)).double()
    states = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    indices = torch.arange(T)
    turn = RotaryEmbedding(D // H, positions)(indices)
    said = called(ours, weights_of(theirs), states, AttentionMask(is_causal=True), turn)
    expected = theirs(
        states,
        attention_mask=causal_bias(),
        position_embeddings=LlamaRotaryEmbedding(config)(states, indices[None]),
    )
    assert_same(said, expected, [states, *theirs.parameters()], **NEAR)


def test_attention_with_normalized_queries_and_keys_equals_that_of_qwen():
    config = Qwen3Config(
        hidden_size=D,
        num_attention_heads=H,
        num_key_value_heads=2,
        head_dim=D // H,
        rms_norm_eps=1e-6,
        attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )
    theirs = randomized(Qwen3Attention(config, 0)).double()
    positions = RotaryPositions(base=100.0)
    ours = build_self_attention(ours_of(2, positions, qk_norm=True, bias=False)).double()
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    weights = renamed(theirs, names | {"query_norm": "q_norm", "key_norm": "k_norm"})
    states = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    turn = RotaryEmbedding(D // H, positions)(torch.arange(T))
    queries, key_value = called(ours, weights, states, turn, method="project_qkv")
    said = called(ours, weights, queries, key_value, AttentionMask(is_causal=True))
    their_turn = LlamaRotaryEmbedding(llama())(states, torch.arange(T)[None])
    expected, _ = theirs(states, their_turn, causal_bias())
    assert_same(said, expected, [states, *theirs.parameters()], **NEAR)


@pytest.mark.parametrize("rope", ROPES)
def test_decoder_only_equals_llama_with_gradients_and_cached(rope):
    rope_parameters, positions = ROPES[rope]
    config = llama(num_key_value_heads=3, rope_parameters=rope_parameters)
    theirs = randomized(LlamaForCausalLM(config)).double().eval()
    config = ours_of(3, positions, bias=False)
    ours = build_model(config, source_size=V, target_size=V, seed=1).double().eval()
    weights = {
        # Ours are multiplied by the root of the width.
        "stream.embeddings.tokens.weight": theirs.model.embed_tokens.weight / math.sqrt(D),
        **renamed(theirs, {"stream.norm": "model.norm", "output": "lm_head"}),
    }
    for number, layer in enumerate(theirs.model.layers):
        weights |= under(f"stream.layers.{number}", weights_of(layer))
    ids = torch.randint(6, V, (B, S + T))
    source, target = ids.split([S, T], dim=1)
    real = torch.ones_like(source, dtype=torch.bool)
    expected = theirs(input_ids=ids).logits[:, S:]
    said = called(ours, weights, source, real, target, torch.arange(target.numel()))
    assert_same(said.view(B, T, V), expected, theirs.parameters(), **NEAR)
    cache = loaded(ours, weights).init_cache(B)
    with torch.no_grad():
        cache.insert(torch.arange(B), ours.prefill(source, real), real)
        steps = [ours.decode_step(target[:, position, None], cache) for position in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected.detach(), **NEAR)
