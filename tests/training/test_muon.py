"""Against singular value decompositions, and against torch's own Muon where there is one."""

import math

import pytest
import torch

from tformer_cli.training.muon import COEFFICIENTS, NUM_ITERATIONS, Muon, orthogonal

SHAPES = [(6, 6), (4, 9), (9, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_polynomial_acts_on_singular_values_alone(shape):
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    for _ in range(NUM_ITERATIONS):
        first, third, fifth = COEFFICIENTS
        values = first * values + third * values**3 + fifth * values**5
    torch.testing.assert_close(orthogonal(matrices), left @ torch.diag_embed(values) @ right)
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
        for _ in range(NUM_ITERATIONS):
            first, third, fifth = COEFFICIENTS
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
    twins = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    settings = {"lr": 0.05, "weight_decay": 0.1}
    ours = Muon([{"params": weights, "momentum": 0.9, "weight_decay": 0.1}], lr=0.05, fused=True)
    theirs = torch.optim.Muon(twins, momentum=0.9, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(3):
        for weight, twin in zip(weights, twins, strict=True):
            weight.grad = torch.randn(shape)
            twin.grad = weight.grad.clone()
        ours.step()
        theirs.step()
        assert all(weight.grad is None for weight in weights)
    for weight, twin in zip(weights, twins, strict=True):
        # Theirs computes in bfloat16.
        torch.testing.assert_close(weight, twin, rtol=0.02, atol=0.005)


def test_an_update_is_as_large_as_one_of_adam():
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.zeros(64, 256))
    optimizer = Muon([{"params": [weight], "momentum": 0.0}], lr=1.0, weight_decay=0.0)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    size = weight.norm().item() / math.sqrt(weight.numel())
    assert 0.15 < size < 0.25
