"""Norms by formula, and residual connections by the tables of their papers."""

import pytest
import torch
from model.parity import assert_same, randomized
from torch import nn

from tformer_cli.config.schema.model import DecoderOnlyConfig, EncoderDecoderConfig
from tformer_cli.model.blocks.residual import DeepNorm, build_norm, build_residual
from tformer_cli.model.build import build_network

D, EPSILON = 7, 0.25


@pytest.mark.parametrize("bias", [True, False])
def test_rms_norm_divides_by_the_root_mean_square(bias):
    states = torch.randn(3, D, dtype=torch.float64, requires_grad=True)
    norm = randomized(build_norm("rms", D, EPSILON, bias=bias)).double()
    assert dict(norm.named_parameters()).keys() == {"weight"}
    root = (states.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    assert_same(norm(states), states / root * norm.weight, [states, norm.weight])


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_removes_mean_and_variance(bias):
    states = torch.randn(3, D, dtype=torch.float64, requires_grad=True)
    norm = randomized(build_norm("layer", D, EPSILON, bias=bias)).double()
    weights = dict(norm.named_parameters())
    assert weights.keys() == ({"weight", "bias"} if bias else {"weight"})
    centered = states - states.mean(-1, keepdim=True)
    root = (centered.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    expected = centered / root * weights["weight"] + weights.get("bias", 0.0)
    assert_same(norm(states), expected, [states, *weights.values()])


# Worked out by hand from Wang et al. 2022, figure 2:
# alpha of an only stack (2 N)^(1/4), its beta (8 N)^(-1/4)
ONLY = {1: (1.189207, 0.594604), 2: (1.414214, 0.5), 8: (2.0, 0.353553), 512: (5.656854, 0.125)}
# encoder of N layers 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16), decoder of M layers
# (3 M)^(1/4) and (12 M)^(-1/4)
BOTH = {
    (1, 1): ((0.81, 0.87), (1.316074, 0.537285)),
    (2, 16): ((1.145513, 0.615183), (2.632148, 0.268642)),
    (16, 1): ((1.62, 0.435), (1.316074, 0.537285)),
    (100, 27): ((3.147341, 0.223904), (3.0, 0.235702)),
}


@pytest.mark.parametrize("num_layers", ONLY)
def test_constants_of_an_only_stack_are_those_of_the_paper(num_layers):
    assert DeepNorm.for_stack(num_layers) == pytest.approx(ONLY[num_layers], rel=1e-5)


@pytest.mark.parametrize("counts", BOTH)
def test_constants_of_two_stacks_are_those_of_the_paper(counts):
    for constants, expected in zip(
        DeepNorm.for_encoder_decoder(*counts), BOTH[counts], strict=True
    ):
        assert constants == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("position", ["pre", "post", "deep"])
def test_residual_follows_its_formula(position):
    config = EncoderDecoderConfig(norm_position=position)
    states, norm, block = torch.randn(3, 7), nn.LayerNorm(7), nn.Linear(7, 7)
    expected = {
        "pre": states + block(norm(states)) / 2,
        "post": norm(states + block(states) / 2),
        "deep": norm(states * 8**0.25 + block(states) / 2),
    }
    found = build_residual(config, DeepNorm.for_stack(4))(
        states, norm, block, lambda part: part / 2
    )
    torch.testing.assert_close(found, expected[position])


@pytest.mark.parametrize("position", ["post", "deep"])
def test_a_stack_that_normalizes_last_has_no_final_norm(position):
    config = DecoderOnlyConfig(dim=12, num_heads=3, norm_position=position)
    network = build_network(config, source_size=9, target_size=9, seed=1)
    assert isinstance(network.stacks()[0].norm, nn.Identity)


def test_each_layer_weighs_its_residual_by_the_depth_of_its_own_stack():
    config = EncoderDecoderConfig(
        dim=8, num_heads=2, num_encoder_layers=2, num_decoder_layers=16, norm_position="deep"
    )
    network = build_network(config, source_size=9, target_size=9, seed=1)
    for stack, (alpha, _) in zip(network.stacks(), BOTH[2, 16], strict=True):
        for layer in stack.each_layer():
            assert layer.residual.keywords == {"alpha": pytest.approx(alpha, rel=1e-5)}
