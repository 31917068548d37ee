import pytest
import torch
from model.twins import assert_same, randomized

from tformer_cli.model.blocks.norms import build_norm

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
