"""Relative bias, RMSNorm and tied output against transformers' T5 with the same weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model.parity import assert_same, called, loaded, randomized, renamed, under
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from tformer_cli.config.schema.model import EncoderDecoderConfig, T5Positions
from tformer_cli.model.blocks.bias import RelativeBias
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq

B, S, T, V, D, H, F = 3, 13, 17, 23, 12, 3, 19
BUCKETS, FARTHEST = 8, 11
ACTIVATIONS = {"relu": "relu", "geglu": "gated-gelu"}
# Norms compute a variance in float32 over there.
NEAR = {"rtol": 1e-4, "atol": 1e-5}


def t5(activation: str) -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=V,
        d_model=D,
        d_kv=D // H,
        d_ff=F,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=H,
        relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=FARTHEST,
        feed_forward_proj=ACTIVATIONS[activation],
        decoder_start_token_id=2,
        attn_implementation="eager",
    )
    if activation == "geglu":
        config.dense_act_fn = "gelu"  # rather than by a hyperbolic tangent
    return randomized(T5ForConditionalGeneration(config)).double().eval()


def ours_of(activation: str) -> Seq2Seq:
    config = EncoderDecoderConfig(
        dim=D,
        num_heads=H,
        feedforward_dim=F,
        num_encoder_layers=2,
        num_decoder_layers=3,
        activation=activation,
        norm="rms",
        bias=False,
        positions=T5Positions(num_buckets=BUCKETS, max_distance=FARTHEST),
        initialization="t5",
        dropout=0.0,
        tie_embeddings="all",
    )
    return build_model(config, source_size=V, target_size=V, seed=1).double().eval()


def attention(theirs: nn.Module) -> dict[str, Tensor]:
    weights = renamed(theirs, {"query": "q", "key": "k", "value": "v", "output": "o"})
    # Their logits are not divided by the root of the width of a head.
    weights["query.weight"] = weights["query.weight"] * math.sqrt(theirs.config.d_kv)
    return weights


def feedforward(theirs: nn.Module) -> dict[str, Tensor]:
    is_gated = hasattr(theirs, "wi_0")
    names = {"gate": "wi_0", "up": "wi_1"} if is_gated else {"up": "wi"}
    return renamed(theirs, names | {"down": "wo"})


def weights_of(theirs: T5ForConditionalGeneration) -> dict[str, Tensor]:
    """Return the weights of our network that is the same."""
    # Our embeddings are multiplied by the root of the width, as their output is divided by it.
    table = theirs.shared.weight / math.sqrt(theirs.config.d_model)
    weights = {"encoder.embeddings.tokens.weight": table}
    for name, stack in (("encoder", theirs.encoder), ("decoder", theirs.decoder)):
        first = "block.0.layer.0.SelfAttention.relative_attention_bias"
        names = {"norm": "final_layer_norm", "bias.table": first}
        weights |= under(name, renamed(stack, names))
        for number, block in enumerate(stack.block):
            *attentions, last = block.layer
            layer = under("feedforward", feedforward(last.DenseReluDense))
            norms = {"feedforward_norm": f"layer.{len(attentions)}.layer_norm"}
            kinds = (("self_attention", "SelfAttention"), ("cross_attention", "EncDecAttention"))
            for position, (part, (mine, other)) in enumerate(zip(attentions, kinds, strict=False)):
                layer |= under(mine, attention(part.get_submodule(other)))
                norms[f"{mine}_norm"] = f"layer.{position}.layer_norm"
            weights |= under(f"{name}.layers.{number}", layer | renamed(block, norms))
    return weights


def sentences() -> tuple[Tensor, Tensor, Tensor]:
    real = torch.arange(S) < torch.tensor([[S], [4], [9]])
    return torch.randint(6, V, (B, S)) * real, real, torch.randint(6, V, (B, T))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_encoder_equals_that_of_t5_with_gradients(activation):
    theirs, ours = t5(activation), ours_of(activation)
    source, real, _ = sentences()
    expected = theirs.encoder(input_ids=source, attention_mask=real.long()).last_hidden_state
    said = called(ours, weights_of(theirs), source, real, method="encode").states
    read = [theirs.shared.weight] + [
        weight for name, weight in theirs.encoder.named_parameters() if "embed" not in name
    ]
    assert_same(said[real], expected[real], read, **NEAR)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_logits_equal_those_of_t5_with_gradients(activation):
    theirs, ours = t5(activation), ours_of(activation)
    source, real, target = sentences()
    expected = theirs(
        input_ids=source, attention_mask=real.long(), decoder_input_ids=target
    ).logits.flatten(0, 1)
    everywhere = torch.arange(target.numel())
    said = called(ours, weights_of(theirs), source, real, target, everywhere)
    assert_same(said, expected, theirs.parameters(), **NEAR)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@torch.no_grad()
def test_cached_decoding_equals_t5(activation):
    theirs = t5(activation)
    ours = loaded(ours_of(activation), weights_of(theirs))
    source, real, target = sentences()
    expected = theirs(input_ids=source, attention_mask=real.long(), decoder_input_ids=target).logits
    cache = ours.init_cache(B)
    cache.insert(torch.arange(B), ours.prefill(source, real), real)
    steps = [ours.decode_step(target[:, position, None], cache) for position in range(T)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, **NEAR)


@given(st.sampled_from([4, 6, 8, 10, 32, 64]), st.integers(1, 300), st.booleans())
def test_classes_of_distances_equal_those_of_t5(num_buckets, beyond, is_causal):
    farthest = num_buckets // 2 + beyond
    distances = torch.arange(-300, 301)
    bias = RelativeBias(num_buckets, farthest, H, is_causal=is_causal)
    expected = T5Attention._relative_position_bucket(
        distances, bidirectional=not is_causal, num_buckets=num_buckets, max_distance=farthest
    )
    assert bias.buckets(distances).tolist() == expected.tolist()


@pytest.mark.parametrize("is_causal", [True, False])
def test_bias_equals_that_of_t5_with_gradients(is_causal):
    config = T5Config(num_heads=H, is_decoder=is_causal)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    table = theirs.relative_attention_bias.weight
    ours = RelativeBias(32, 128, H, is_causal=is_causal)
    said = called(ours, {"table.weight": table}, torch.arange(200), torch.arange(200))
    expected = theirs.compute_bias(200, 200)
    assert_same(said[None], expected, [table])


def test_first_weights_are_spread_as_those_of_t5():
    config = EncoderDecoderConfig(
        dim=96,
        num_heads=6,
        feedforward_dim=160,
        num_encoder_layers=1,
        num_decoder_layers=1,
        activation="geglu",
        norm="rms",
        bias=False,
        positions=T5Positions(num_buckets=512, max_distance=600),
        initialization="t5",
    )
    ours = build_model(config, source_size=900, target_size=900, seed=3)
    theirs = T5ForConditionalGeneration(
        T5Config(
            vocab_size=900,
            d_model=96,
            d_kv=16,
            d_ff=160,
            num_heads=6,
            num_layers=1,
            relative_attention_num_buckets=512,
            relative_attention_max_distance=600,
            feed_forward_proj="gated-gelu",
        )
    )
    expected = weights_of(theirs)
    for name, weight in ours.named_parameters():
        mine, reference = (part.square().mean().sqrt() for part in (weight, expected[name]))
        # Six standard deviations of the ratio of two roots of means of so many squares.
        assert abs(mine / reference - 1) < 6 * weight.numel() ** -0.5, name
