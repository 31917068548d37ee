"""Optimizers against torch and formulas."""

import math

import pytest
import torch

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import (
    AdamConfig,
    AdamWConfig,
    MuonConfig,
)
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.training.optim import (
    NEWTON_SCHULZ_COEFFICIENTS,
    NEWTON_SCHULZ_STEPS,
    Muon,
    build_optimizer,
    orthogonalize,
    set_learning_rate,
)


def model(tie: str = "all") -> Seq2Seq:
    config = EncoderDecoderConfig(
        dim=12,
        num_heads=3,
        feedforward_dim=16,
        num_encoder_layers=1,
        num_decoder_layers=1,
        tie_embeddings=tie,
    )
    return build_model(config, source_size=20, target_size=20, seed=1)


def test_only_matrices_of_linear_layers_are_decayed():
    network = model()
    optimizer = build_optimizer(AdamWConfig(weight_decay=0.25), network)
    decays = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in network.named_parameters():
        is_matrix = name.endswith(".weight") and "norm" not in name and "embeddings" not in name
        assert decays.pop(id(parameter)) == (0.25 if is_matrix else 0.0), name
    assert not decays


def test_an_untied_output_is_decayed_as_a_matrix():
    network = model(tie="none")
    optimizer = build_optimizer(AdamWConfig(weight_decay=0.25), network)
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert id(network.output.weight) in decayed


def test_first_adam_step_moves_each_weight_by_the_learning_rate():
    network = model()
    optimizer = build_optimizer(AdamConfig(epsilon=1e-12), network)
    set_learning_rate(optimizer, 0.125)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    for parameter in network.parameters():
        parameter.grad = torch.where(torch.rand_like(parameter) < 0.5, 1.0, -1.0) * 0.7
    optimizer.step()
    for parameter, old in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.125 * parameter.grad.sign())


@pytest.mark.parametrize("tie", ["all", "none"])
def test_muon_moves_the_matrices_of_layers_and_adamw_the_rest(tie):
    network, other = model(tie), model(tie)
    muon = build_optimizer(MuonConfig(weight_decay=0.25), network)
    adamw = build_optimizer(AdamWConfig(weight_decay=0.25), other)
    for (name, weight), copy in zip(network.named_parameters(), other.parameters(), strict=True):
        weight.grad = torch.randn_like(weight)
        copy.grad = weight.grad.clone()
        has_momentum = ".layers." in name and weight.dim() == 2
        groups = [g for g in muon.param_groups if any(p is weight for p in g["params"])]
        assert [("momentum" in group) for group in groups] == [has_momentum], name
    for _ in range(2):
        gradients = [copy.grad for copy in other.parameters()]
        for weight, gradient in zip(network.parameters(), gradients, strict=True):
            weight.grad = gradient.clone()
        muon.step()
        adamw.step()
    for (name, weight), copy in zip(network.named_parameters(), other.parameters(), strict=True):
        is_turned = ".layers." in name and weight.dim() == 2
        assert torch.equal(weight, copy) != is_turned, name


SHAPES = [(6, 6), (4, 9), (9, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_polynomial_acts_on_singular_values_alone(shape):
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    for _ in range(NEWTON_SCHULZ_STEPS):
        first, third, fifth = NEWTON_SCHULZ_COEFFICIENTS
        values = first * values + third * values**3 + fifth * values**5
    torch.testing.assert_close(orthogonalize(matrices), left @ torch.diag_embed(values) @ right)
    assert values.min() > 0.5
    assert values.max() < 1.5


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_those_of_the_formulas_by_singular_values(shape):
    """Momentum by Nesterov, singular values by the polynomial, the size of Adam, decay apart."""
    torch.manual_seed(1)
    rate, momentum, decay = 0.05, 0.9, 0.1
    weight = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))
    group = {"params": [weight], "momentum": momentum, "weight_decay": decay}
    optimizer = Muon([group], lr=rate)
    expected, average = weight.detach().clone(), torch.zeros(shape, dtype=torch.float64)
    for _ in range(3):
        gradient = torch.randn(shape, dtype=torch.float64)
        average = momentum * average + (1 - momentum) * gradient
        ahead = momentum * average + (1 - momentum) * gradient
        left, values, right = torch.linalg.svd(ahead, full_matrices=False)
        values = values / values.norm()
        for _ in range(NEWTON_SCHULZ_STEPS):
            first, third, fifth = NEWTON_SCHULZ_COEFFICIENTS
            values = first * values + third * values**3 + fifth * values**5
        update = 0.2 * max(shape) ** 0.5 * (left @ values.diag() @ right)
        expected = expected * (1 - rate * decay) - rate * update
        weight.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_those_of_torchs_own(shape):
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(shape)) for _ in range(2)]
    copies = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    settings = {"lr": 0.05, "weight_decay": 0.1}
    ours = Muon([{"params": weights, "momentum": 0.9, "weight_decay": 0.1}], lr=0.05, fused=True)
    theirs = torch.optim.Muon(copies, momentum=0.9, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(3):
        for weight, copy in zip(weights, copies, strict=True):
            weight.grad = torch.randn(shape)
            copy.grad = weight.grad.clone()
        ours.step()
        theirs.step()
        assert all(weight.grad is None for weight in weights)
    for weight, copy in zip(weights, copies, strict=True):
        # Theirs computes in bfloat16.
        torch.testing.assert_close(weight, copy, rtol=0.02, atol=0.005)


def test_an_update_is_as_large_as_one_of_adam():
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.zeros(64, 256))
    optimizer = Muon([{"params": [weight], "momentum": 0.0}], lr=1.0, weight_decay=0.0)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    size = weight.norm().item() / math.sqrt(weight.numel())
    assert 0.15 < size < 0.25
