import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.device import autocast
from tformer_cli.training import loss
from tformer_cli.training.loss import CACHED_ROWS, ROWS_ON_CPU, smoothed_nll_sum

TOKENS, D, V = 7, 5, 11


def as_it_is(size: int, dtype: torch.dtype) -> nn.Linear:
    """The map whose logits are the states."""
    output = nn.Linear(size, size, bias=False, dtype=dtype)
    nn.init.eye_(output.weight)
    return output


def loss_and_gradients(
    states: Tensor, output: nn.Linear, found: Tensor, factor: float
) -> list[Tensor]:
    """The loss, and the gradients of factor * loss for states and for the weights of the map."""
    inputs = [states, *output.parameters()]
    return [found.detach(), *torch.autograd.grad(found * factor, inputs)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("num_tokens", [1, CACHED_ROWS, ROWS_ON_CPU, 2 * ROWS_ON_CPU + 70])
def test_loss_and_gradients_equal_torch_cross_entropy(num_tokens, smoothing, bias):
    states = torch.randn(num_tokens, D, dtype=torch.float64, requires_grad=True)
    output = nn.Linear(D, V, bias=bias, dtype=torch.float64)
    targets = torch.randint(V, (num_tokens,))
    expected = functional.cross_entropy(
        output(states), targets, label_smoothing=smoothing, reduction="sum"
    )
    found = smoothed_nll_sum(states, output, targets, smoothing).loss
    torch.testing.assert_close(
        loss_and_gradients(states, output, found, 0.3),
        loss_and_gradients(states, output, expected, 0.3),
    )


def test_a_weight_that_states_come_from_as_well_has_both_gradients():
    tokens = nn.Embedding(V, D, dtype=torch.float64)
    output = nn.Linear(D, V, bias=False, dtype=torch.float64)
    output.weight = tokens.weight
    ids, targets = torch.randint(V, (TOKENS,)), torch.randint(V, (TOKENS,))
    smoothed_nll_sum(tokens(ids).tanh(), output, targets, 0.1).loss.backward()
    found, tokens.weight.grad = tokens.weight.grad, None
    logits = output(tokens(ids).tanh())
    functional.cross_entropy(logits, targets, label_smoothing=0.1, reduction="sum").backward()
    torch.testing.assert_close(found, tokens.weight.grad)


def test_sums_hold_the_unsmoothed_loss_and_the_hits():
    states, targets = torch.randn(TOKENS, D), torch.randint(V, (TOKENS,))
    output = nn.Linear(D, V)
    logits = output(states)
    targets[2] = logits[2].argmax()
    nll = functional.cross_entropy(logits, targets, reduction="sum")
    hits = sum(int(row.argmax() == target) for row, target in zip(logits, targets, strict=True))
    sums = smoothed_nll_sum(states, output, targets, 0.1)
    torch.testing.assert_close(sums.nll, nll.detach())
    assert sums.num_correct == hits >= 1


def test_never_are_the_logits_of_more_rows_there_than_are_gone_through_together(monkeypatch):
    monkeypatch.setattr(loss, "ROWS_ON_CPU", 4)
    output, seen = nn.Linear(D, V), []
    output.register_forward_hook(lambda module, inputs, logits: seen.append(len(logits)))
    smoothed_nll_sum(torch.randn(10, D), output, torch.randint(V, (10,)), 0.1)
    assert seen == [4, 4, 2]


def test_bfloat16_is_as_exact_as_the_digits_of_its_products():
    """In float32 except for the products, as training in bfloat16 has it."""
    states = torch.randn(300, 64, requires_grad=True)
    output = nn.Linear(64, 500)
    targets = torch.randint(500, (300,))
    with autocast(torch.device("cpu"), torch.bfloat16):
        found = smoothed_nll_sum(states, output, targets, 0.1).loss
    rough = loss_and_gradients(states, output, found, 1.0)
    expected = functional.cross_entropy(
        output(states), targets, label_smoothing=0.1, reduction="sum"
    )
    for one, other in zip(rough, loss_and_gradients(states, output, expected, 1.0), strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 2**-7


def test_bfloat16_logits_have_a_loss_and_a_gradient_as_exact_as_their_own_digits():
    """A log of the total in bfloat16 would put probabilities off by 3%."""
    rough = (2 * torch.randn(20, 4001)).bfloat16()
    targets = torch.randint(4001, (20,))
    rough[:10].scatter_(1, targets[:10, None], 13.0)
    exact = rough.double().requires_grad_()
    expected = functional.cross_entropy(exact, targets, label_smoothing=0.1, reduction="sum")
    expected.backward()
    subject = rough.clone().requires_grad_()
    output = as_it_is(4001, torch.bfloat16)
    found = smoothed_nll_sum(subject, output, targets, 0.1).loss
    found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    # A probability below one has digits of 2 ** -9 in bfloat16; two roundings come together.
    assert float((subject.grad.double() - exact.grad).abs().max()) < 2**-7


def test_a_loss_scale_keeps_in_float16_what_would_be_too_small_for_it():
    """Of a large vocabulary most of the gradient is a smoothing of a millionth or so."""
    size, factor = 32_000, 2.0**16 / 4096
    rough = torch.randn(3, size).half()
    targets = torch.tensor([7, 8, 9])
    rough[0, 7] = 20.0
    exact = rough.double().requires_grad_()
    functional.cross_entropy(exact, targets, label_smoothing=0.1, reduction="sum").backward()
    small = exact.grad[0].abs() < 1e-5
    assert small.sum() == size - 1
    shares = []
    for scale in (1.0, factor):
        _, gradient = loss._sums_and_gradient(rough.clone(), targets, 0.1, scale)
        assert gradient.dtype == torch.float16
        error = gradient.double() / scale - exact.grad
        shares.append(float(error[0, small].norm() / exact.grad[0, small].norm()))
    # Two roundings of what is added, and one of the sum; without a scale, half a percent is lost.
    assert shares[1] < 2**-9 < 2**-8 < shares[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_factor_of_the_gradient_leaves_the_loss_as_it_is(dtype):
    states = torch.randn(TOKENS, D, requires_grad=True)
    output = nn.Linear(D, V)
    targets = torch.randint(V, (TOKENS,))
    found = []
    for factor in (1.0, 0.25):
        with autocast(torch.device("cpu"), dtype):
            sums = smoothed_nll_sum(states, output, targets, 0.1, factor)
        found.append((sums.loss.item(), torch.autograd.grad(sums.loss, [states, output.weight])))
    (loss_itself, gradients), (same_loss, quarters) = found
    assert loss_itself == same_loss
    for whole, quarter in zip(gradients, quarters, strict=True):
        # A power of two rounds nothing.
        assert torch.equal(whole * 0.25, quarter)


def test_a_probability_near_one_keeps_the_digits_of_its_gradient_in_bfloat16():
    rough = torch.zeros(1, 50, dtype=torch.bfloat16)
    rough[0, 7] = 11.0
    target = torch.tensor([7])
    exact = rough.double().requires_grad_()
    functional.cross_entropy(exact, target, reduction="sum").backward()
    subject = rough.clone().requires_grad_()
    smoothed_nll_sum(subject, as_it_is(50, torch.bfloat16), target, 0.0).loss.backward()
    assert -0.002 < float(exact.grad[0, 7]) < 0
    assert float(subject.grad[0, 7]) == pytest.approx(float(exact.grad[0, 7]), rel=2**-8)
