import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tformer_cli.kernels.rms_norm import rms_norm

EPSILON = 1e-3


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    states = torch.randn(shape, dtype=dtype, requires_grad=True)
    return states, torch.randn(shape[-1], dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("shape", [(7, 12), (2, 3, 5, 8), (1, 1), (0, 4)])
def test_values_and_gradients_are_those_of_torch(shape):
    states, weight = drawn(*shape)
    ours = rms_norm(states, weight, EPSILON)
    theirs = functional.rms_norm(states, weight.shape, weight, EPSILON)
    assert ours.grad_fn is not None
    assert "CpuRmsNorm" in ours.grad_fn.name()
    torch.testing.assert_close(ours, theirs)
    gradient = torch.randn_like(theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (states, weight), gradient),
        torch.autograd.grad(theirs, (states, weight), gradient),
    )


def test_gradients_are_those_of_finite_differences():
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, EPSILON), drawn(3, 6))


def test_heads_that_are_a_view_and_a_gradient_that_repeats_a_row():
    states, weight = drawn(4, 6, 8)
    heads = states.transpose(1, 2)[..., :3]
    scale = weight[:3]
    expected = functional.rms_norm(heads, (3,), scale, EPSILON).sum()
    torch.testing.assert_close(
        torch.autograd.grad(rms_norm(heads, scale, EPSILON).sum(), (states, weight)),
        torch.autograd.grad(expected, (states, weight)),
    )


def test_weights_that_are_not_trained_get_no_gradient():
    states, weight = drawn(5, 4)
    weight.requires_grad_(False)
    rms_norm(states, weight, EPSILON).sum().backward()
    assert states.grad is not None
    assert weight.grad is None


def test_without_a_gradient_it_is_torchs():
    states, weight = drawn(5, 16, dtype=torch.float32)
    with torch.no_grad():
        normalized = rms_norm(states, weight, EPSILON)
        assert torch.equal(normalized, functional.rms_norm(states, weight.shape, weight, EPSILON))
