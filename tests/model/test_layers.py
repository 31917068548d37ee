"""Our layers against torch's, with copied weights: outputs and gradients."""

import itertools

import pytest
import torch
from torch import nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model import masks
from tformer_cli.model.attention import Attention, View
from tformer_cli.model.layers import DecoderLayer, EncoderLayer

B, S, T, D, H, F = 2, 5, 7, 12, 3, 17
CHOICES = list(itertools.product(("pre", "post"), ("relu", "gelu")))


def config(norm_position: str, activation: str) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(
        dim=D,
        num_heads=H,
        feedforward_dim=F,
        dropout=0.0,
        norm="layer",
        norm_position=norm_position,
        activation=activation,
        norm_epsilon=1e-5,
    )


def copy_attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    parts = zip(
        (ours.query, ours.key, ours.value),
        theirs.in_proj_weight.chunk(3),
        theirs.in_proj_bias.chunk(3),
        strict=True,
    )
    for linear, weight, bias in parts:
        linear.weight.data.copy_(weight)
        linear.bias.data.copy_(bias)
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def copy_layer(ours: EncoderLayer | DecoderLayer, theirs: nn.Module) -> None:
    copy_attention(ours.self_attention, theirs.self_attn)
    ours.self_attention_norm.load_state_dict(theirs.norm1.state_dict())
    last = theirs.norm2
    if isinstance(ours, DecoderLayer):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        ours.cross_attention_norm.load_state_dict(theirs.norm2.state_dict())
        last = theirs.norm3
    ours.feedforward.inner.load_state_dict(theirs.linear1.state_dict())
    ours.feedforward.outer.load_state_dict(theirs.linear2.state_dict())
    ours.feedforward_norm.load_state_dict(last.state_dict())


def assert_same_gradients(ours, theirs, inputs):
    direction = torch.randn_like(theirs)
    mine = torch.autograd.grad((ours * direction).sum(), inputs)
    reference = torch.autograd.grad((theirs * direction).sum(), inputs)
    for gradient, expected in zip(mine, reference, strict=True):
        torch.testing.assert_close(gradient, expected)


def randomised(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


@pytest.mark.parametrize(("norm_position", "activation"), CHOICES)
def test_encoder_layer_equals_torch(norm_position, activation):
    theirs = randomised(
        nn.TransformerEncoderLayer(
            D, H, F, 0.0, activation, batch_first=True, norm_first=norm_position == "pre"
        ).double()
    )
    ours = EncoderLayer(config(norm_position, activation), None).double()
    copy_layer(ours, theirs)
    real = torch.arange(S) < torch.tensor([[5], [3]])
    states = torch.randn(B, S, D, dtype=torch.float64, requires_grad=True)
    actual = ours(states, View(mask=masks.padding(real)), torch.arange(S))
    expected = theirs(states, src_key_padding_mask=~real)
    torch.testing.assert_close(actual, expected)
    assert_same_gradients(actual, expected, (states,))


@pytest.mark.parametrize(("norm_position", "activation"), CHOICES)
def test_decoder_layer_equals_torch(norm_position, activation):
    theirs = randomised(
        nn.TransformerDecoderLayer(
            D, H, F, 0.0, activation, batch_first=True, norm_first=norm_position == "pre"
        ).double()
    )
    ours = DecoderLayer(config(norm_position, activation), None).double()
    copy_layer(ours, theirs)
    real = torch.arange(S) < torch.tensor([[5], [3]])
    states = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(B, S, D, dtype=torch.float64, requires_grad=True)
    actual = ours(
        states,
        View(causal=True),
        ours.cross_attention.key_value(memory),
        View(mask=masks.padding(real)),
        torch.arange(T),
    )
    expected = theirs(
        states,
        memory,
        tgt_mask=~masks.causal(T),
        memory_key_padding_mask=~real,
    )
    torch.testing.assert_close(actual, expected)
    assert_same_gradients(actual, expected, (states, memory))
