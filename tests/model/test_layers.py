"""Our layers and stacks against torch's, with the same weights: outputs and gradients."""

import itertools
import math
from typing import Any

import pytest
import torch
from model.parity import assert_same, called, randomized, renamed, under
from torch import Tensor, nn

from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    MaskedEncoderConfig,
    NoPositions,
)
from tformer_cli.kernels.attention_mask import AttentionMask, causal_mask, padding_mask
from tformer_cli.model.blocks.residual import DeepNorm
from tformer_cli.model.build import build_model, build_network
from tformer_cli.model.layers import DecoderLayer, EncoderLayer
from tformer_cli.padding import flat_positions

B, S, T, V, D, H, F = 2, 5, 7, 23, 12, 3, 17
CHOICES = list(itertools.product(("pre", "post"), ("relu", "gelu"), (True, False)))
choices = pytest.mark.parametrize(("norm_position", "activation", "bias"), CHOICES)


def choice(norm_position: str, activation: str, bias: bool) -> dict[str, Any]:
    return {
        "dim": D,
        "num_heads": H,
        "feedforward_dim": F,
        "dropout": 0.0,
        "norm": "layer",
        "norm_position": norm_position,
        "activation": activation,
        "norm_epsilon": 1e-5,
        "bias": bias,
        "positions": NoPositions(),
        "tie_embeddings": "none",
    }


def config(*chosen: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(num_encoder_layers=2, num_decoder_layers=3, **choice(*chosen))


def attention(name: str, theirs: nn.MultiheadAttention) -> dict[str, Tensor]:
    """Return the weights of our attention that is the same, under its name."""
    weights = renamed(theirs, {"output": "out_proj"})
    in_three = {"weight": theirs.in_proj_weight.chunk(3)}
    if theirs.in_proj_bias is not None:
        in_three["bias"] = theirs.in_proj_bias.chunk(3)
    for kind, parts in in_three.items():
        for part, weight in zip(("query", "key", "value"), parts, strict=True):
            weights[f"{part}.{kind}"] = weight
    return under(name, weights)


def weights_of(theirs: nn.Module) -> dict[str, Tensor]:
    """Return the weights of our layer that is the same."""
    weights = attention("self_attention", theirs.self_attn)
    names = {"feedforward.up": "linear1", "feedforward.down": "linear2"}
    norms = ["self_attention_norm", "feedforward_norm"]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        weights |= attention("cross_attention", theirs.multihead_attn)
        norms.insert(1, "cross_attention_norm")
    names |= {norm: f"norm{number}" for number, norm in enumerate(norms, start=1)}
    return weights | renamed(theirs, names)


def torch_layer(kind: type[nn.Module], norm_position: str, activation: str, bias: bool):
    return kind(
        D,
        H,
        F,
        0.0,
        activation,
        batch_first=True,
        norm_first=norm_position == "pre",
        bias=bias,
        dtype=torch.float64,
    )


def real_tokens() -> Tensor:
    return torch.arange(S) < torch.tensor([[5], [3]])


def states_of(length: int) -> Tensor:
    return torch.randn(B, length, D, dtype=torch.float64, requires_grad=True)


@choices
def test_encoder_layer_equals_torch(norm_position, activation, bias):
    chosen = norm_position, activation, bias
    theirs = randomized(torch_layer(nn.TransformerEncoderLayer, *chosen))
    ours = EncoderLayer(config(*chosen), DeepNorm.for_stack(1)).double()
    real, states = real_tokens(), states_of(S)
    said = called(ours, weights_of(theirs), states, AttentionMask(mask=padding_mask(real)), None)
    expected = theirs(states, src_key_padding_mask=~real)
    assert_same(said, expected, [states, *theirs.parameters()])


@choices
def test_decoder_layer_equals_torch(norm_position, activation, bias):
    chosen = norm_position, activation, bias
    theirs = randomized(torch_layer(nn.TransformerDecoderLayer, *chosen))
    ours = DecoderLayer(config(*chosen), DeepNorm.for_stack(1)).double()
    real, states, memory = real_tokens(), states_of(T), states_of(S)
    weights = weights_of(theirs)
    across = {
        name.removeprefix("cross_attention."): weight
        for name, weight in weights.items()
        if name.startswith("cross_attention.")
    }
    key_value = called(ours.cross_attention, across, memory, method="project_kv")
    source_view = AttentionMask(mask=padding_mask(real))
    said = called(
        ours, weights, states, AttentionMask(is_causal=True), key_value, source_view, None
    )
    expected = theirs(states, memory, tgt_mask=~causal_mask(T), memory_key_padding_mask=~real)
    assert_same(said, expected, [states, memory, *theirs.parameters()])


def torch_encoder(norm_position: str, activation: str, bias: bool) -> nn.TransformerEncoder:
    layer = torch_layer(nn.TransformerEncoderLayer, norm_position, activation, bias)
    norm = final_norm(norm_position, bias)
    return randomized(nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False))


def torch_decoder(norm_position: str, activation: str, bias: bool) -> nn.TransformerDecoder:
    layer = torch_layer(nn.TransformerDecoderLayer, norm_position, activation, bias)
    return randomized(nn.TransformerDecoder(layer, 3, final_norm(norm_position, bias)))


def final_norm(norm_position: str, bias: bool) -> nn.LayerNorm | None:
    return nn.LayerNorm(D, bias=bias).double() if norm_position == "pre" else None


def stack_weights(theirs: nn.Module, table: nn.Embedding) -> dict[str, Tensor]:
    """Return the weights of our stack that is the same."""
    # Our embeddings are multiplied by the root of the width.
    weights = {"embeddings.tokens.weight": table.weight / math.sqrt(D)}
    if theirs.norm is not None:
        weights |= renamed(theirs, {"norm": "norm"})
    for number, layer in enumerate(theirs.layers):
        weights |= under(f"layers.{number}", weights_of(layer))
    return weights


@choices
def test_stacks_equal_those_of_torch(norm_position, activation, bias):
    chosen = norm_position, activation, bias
    encoder, decoder = torch_encoder(*chosen), torch_decoder(*chosen)
    theirs = nn.Transformer(D, H, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    tables = nn.ModuleDict({name: nn.Embedding(V, D) for name in ("encoder", "decoder")}).double()
    ours = build_model(config(*chosen), source_size=V, target_size=V, seed=1).double()
    weights = {"output.weight": ours.output.weight}
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        weights |= under(name, stack_weights(stack, tables[name]))
    source, target, real = torch.randint(V, (B, S)), torch.randint(V, (B, T)), real_tokens()
    said = called(ours, weights, source, real, target, method="target_hidden_states")
    expected = theirs(
        tables["encoder"](source),
        tables["decoder"](target),
        tgt_mask=~causal_mask(T),
        src_key_padding_mask=~real,
        memory_key_padding_mask=~real,
    )
    assert_same(said, expected, [*tables.parameters(), *theirs.parameters()])


@choices
def test_masked_encoder_equals_that_of_torch(norm_position, activation, bias):
    chosen = norm_position, activation, bias
    theirs, table = torch_encoder(*chosen), nn.Embedding(V, D).double()
    config = MaskedEncoderConfig(num_layers=2, **choice(*chosen))
    ours = build_network(config, source_size=V, target_size=V, seed=1).double()
    output = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    weights = {"output.weight": output} | under("encoder", stack_weights(theirs, table))
    ids, real = torch.randint(V, (B, S)), real_tokens()
    asked = real & (torch.rand(B, S) < 0.5)
    said = called(ours, weights, ids, real, ids, flat_positions(asked))
    states = theirs(table(ids), src_key_padding_mask=~real)
    expected = states[asked] @ output.T
    assert_same(said, expected, [output, table.weight, *theirs.parameters()])


@pytest.mark.parametrize("source_attention", ["causal", "bidirectional"])
@choices
def test_decoder_only_equals_a_stack_of_torch_that_sees_as_much(
    norm_position, activation, bias, source_attention
):
    chosen = norm_position, activation, bias
    theirs, table = torch_encoder(*chosen), nn.Embedding(V, D).double()
    config = DecoderOnlyConfig(num_layers=2, source_attention=source_attention, **choice(*chosen))
    ours = build_model(config, source_size=V, target_size=V, seed=1).double()
    weights = {"output.weight": ours.output.weight} | under("stream", stack_weights(theirs, table))
    source, target, real = torch.randint(V, (B, S)), torch.randint(V, (B, T)), real_tokens()
    said = called(ours, weights, source, real, target, method="target_hidden_states")
    sees = [
        [
            key <= query or (source_attention == "bidirectional" and key < S and query < S)
            for key in range(S + T)
        ]
        for query in range(S + T)
    ]
    expected = theirs(
        table(torch.cat((source, target), dim=1)),
        mask=~torch.tensor(sees),
        src_key_padding_mask=torch.cat((~real, torch.zeros(B, T, dtype=torch.bool)), dim=1),
    )
    assert_same(said, expected[:, S:], [table.weight, *theirs.parameters()])
