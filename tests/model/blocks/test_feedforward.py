"""The block that treats each position by itself, by formula."""

import math

import pytest
import torch
from model.twins import assert_same
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.blocks.feedforward import build_feedforward

D, F = 5, 7


def normal_share(numbers: Tensor) -> Tensor:
    """Return how much of a standard normal distribution lies below."""
    return (1 + torch.erf(numbers / math.sqrt(2))) / 2


FORMULAS = {
    "relu": lambda gate, inner: inner * (inner > 0),
    "gelu": lambda gate, inner: inner * normal_share(inner),
    "silu": lambda gate, inner: inner / (1 + torch.exp(-inner)),
    "swiglu": lambda gate, inner: gate / (1 + torch.exp(-gate)) * inner,
    "geglu": lambda gate, inner: gate * normal_share(gate) * inner,
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", FORMULAS)
def test_feedforward_follows_its_formula_with_gradients(activation, bias):
    config = EncoderDecoderConfig(
        dim=D, feedforward_dim=F, activation=activation, bias=bias, dropout=0.0
    )
    block = build_feedforward(config).double()
    weights = dict(block.named_parameters())
    assert all(name.endswith("weight") for name in weights) == (not bias)
    for weight in weights.values():
        torch.nn.init.normal_(weight)

    def mapped(name: str, states: Tensor) -> Tensor:
        return states @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    states = torch.randn(3, D, dtype=torch.float64, requires_grad=True)
    gate = mapped("gate", states) if activation.endswith("glu") else None
    expected = mapped("outer", FORMULAS[activation](gate, mapped("inner", states)))
    assert_same(block(states), expected, [states, *weights.values()])


@pytest.mark.parametrize("activation", FORMULAS)
def test_dropout_stands_before_the_last_map(activation):
    config = EncoderDecoderConfig(
        dim=D, feedforward_dim=400, activation=activation, dropout=0.0, feedforward_dropout=0.5
    )
    block = build_feedforward(config)
    seen: list[Tensor] = []
    block.outer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    states = torch.randn(50, D)
    block(states)
    block.eval()(states)
    dropped, whole = seen
    is_kept = dropped != 0
    torch.testing.assert_close(dropped[is_kept], 2 * whole[is_kept])
    assert abs(is_kept[whole != 0].double().mean() - 0.5) < 0.03
