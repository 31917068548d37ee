"""The block that treats each position by itself, by formula."""

import math

import pytest
import torch
from model.parity import assert_same
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.blocks.feedforward import build_feedforward, current_weight_name

D, F = 5, 7


def normal_share(numbers: Tensor) -> Tensor:
    """Return how much of a standard normal distribution lies below."""
    return (1 + torch.erf(numbers / math.sqrt(2))) / 2


FORMULAS = {
    "relu": lambda gate, up: up * (up > 0),
    "gelu": lambda gate, up: up * normal_share(up),
    "silu": lambda gate, up: up / (1 + torch.exp(-up)),
    "swiglu": lambda gate, up: gate / (1 + torch.exp(-gate)) * up,
    "geglu": lambda gate, up: gate * normal_share(gate) * up,
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
    expected = mapped("down", FORMULAS[activation](gate, mapped("up", states)))
    assert_same(block(states), expected, [states, *weights.values()])


@pytest.mark.parametrize("activation", FORMULAS)
def test_dropout_stands_before_the_last_map(activation):
    config = EncoderDecoderConfig(
        dim=D, feedforward_dim=400, activation=activation, dropout=0.0, feedforward_dropout=0.5
    )
    block = build_feedforward(config)
    seen: list[Tensor] = []
    block.down.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    states = torch.randn(50, D)
    block(states)
    block.eval()(states)
    dropped, whole = seen
    is_kept = dropped != 0
    torch.testing.assert_close(dropped[is_kept], 2 * whole[is_kept])
    assert abs(is_kept[whole != 0].double().mean() - 0.5) < 0.03


def test_only_weights_of_feedforward_blocks_are_renamed():
    layer = "decoder.layers.3"
    assert current_weight_name(f"{layer}.feedforward.inner.weight") == (
        f"{layer}.feedforward.up.weight"
    )
    assert current_weight_name(f"{layer}.feedforward.outer.bias/exp_avg") == (
        f"{layer}.feedforward.down.bias/exp_avg"
    )
    for name in (f"{layer}.feedforward.gate.weight", "theirs.feedforward_inner.weight", "inner.x"):
        assert current_weight_name(name) == name
