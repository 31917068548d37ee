import pytest
import torch
from torch.nn import functional

from tformer_cli.training.loss import smoothed_nll_sum

TOKENS, V = 7, 11


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_loss_and_gradient_equal_torch_cross_entropy(smoothing):
    logits = torch.randn(TOKENS, V, dtype=torch.float64)
    targets = torch.randint(V, (TOKENS,))
    reference = logits.clone().requires_grad_()
    expected = functional.cross_entropy(
        reference, targets, label_smoothing=smoothing, reduction="sum"
    )
    (expected * 0.3).backward()
    mine = logits.clone().requires_grad_()
    # The loss writes its gradient over the logits, so a leaf goes in as a copy.
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
