import pytest
import torch
from torch.nn import functional

from tformer_cli.training.loss import CHUNK_ROWS, smoothed_nll_sum

TOKENS, V = 7, 11


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("num_tokens", [1, CHUNK_ROWS, 2 * CHUNK_ROWS + 7])
def test_loss_and_gradient_equal_torch_cross_entropy(smoothing, num_tokens):
    logits = torch.randn(num_tokens, V, dtype=torch.float64)
    targets = torch.randint(V, (num_tokens,))
    reference = logits.clone().requires_grad_()
    expected = functional.cross_entropy(
        reference, targets, label_smoothing=smoothing, reduction="sum"
    )
    (expected * 0.3).backward()
    mine = logits.clone().requires_grad_()
    # The loss overwrites the logits, so a leaf goes in as a copy.
    sums = smoothed_nll_sum(mine.clone(), targets, smoothing)
    (sums.loss * 0.3).backward()
    torch.testing.assert_close(sums.loss, expected.detach())
    torch.testing.assert_close(mine.grad, reference.grad)


def test_sums_hold_the_unsmoothed_loss_and_the_hits():
    logits, targets = torch.randn(TOKENS, V), torch.randint(V, (TOKENS,))
    targets[2] = logits[2].argmax()
    nll = functional.cross_entropy(logits, targets, reduction="sum")
    hits = sum(int(row.argmax() == target) for row, target in zip(logits, targets, strict=True))
    sums = smoothed_nll_sum(logits, targets, 0.1)
    torch.testing.assert_close(sums.nll, nll)
    assert sums.num_correct == hits >= 1


def test_bfloat16_logits_have_a_gradient_as_exact_as_their_own_digits():
    """A log of the total in bfloat16 would put probabilities off by 3%."""
    rough = (2 * torch.randn(20, 4001)).bfloat16()
    targets = torch.randint(4001, (20,))
    rough[:10].scatter_(1, targets[:10, None], 13.0)
    exact = rough.double().requires_grad_()
    functional.cross_entropy(exact, targets, label_smoothing=0.1, reduction="sum").backward()
    subject = rough.clone().requires_grad_()
    smoothed_nll_sum(subject.clone(), targets, 0.1).loss.backward()
    # A probability below one has digits of 2 ** -9 in bfloat16; two roundings come together.
    assert float((subject.grad.double() - exact.grad).abs().max()) < 2**-7


def test_a_probability_near_one_keeps_the_digits_of_its_gradient_in_bfloat16():
    rough = torch.zeros(1, 50, dtype=torch.bfloat16)
    rough[0, 7] = 11.0
    target = torch.tensor([7])
    exact = rough.double().requires_grad_()
    functional.cross_entropy(exact, target, reduction="sum").backward()
    subject = rough.clone().requires_grad_()
    smoothed_nll_sum(subject.clone(), target, 0.0).loss.backward()
    assert -0.002 < float(exact.grad[0, 7]) < 0
    assert float(subject.grad[0, 7]) == pytest.approx(float(exact.grad[0, 7]), rel=2**-8)
