import pytest
import torch

from tformer_cli.kernels.softmax import log_softmax, logsumexp, softmax


@pytest.mark.parametrize("length", [1, 7, 15, 16, 17, 40])
def test_softmax_is_that_of_torch_with_its_gradient(length):
    logits = torch.randn(3, 2, length, dtype=torch.float64).requires_grad_()
    direction = torch.randn(3, 2, length, dtype=torch.float64)
    found, expected = softmax(logits), logits.softmax(-1)
    torch.testing.assert_close(found, expected)
    mine, theirs = (
        torch.autograd.grad((out * direction).sum(), logits)[0] for out in (found, expected)
    )
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_log_probs_are_normalized_over_the_whole_vocabulary(dtype):
    logits = torch.randn(50, 2345).to(dtype)
    logits[:, 7] = -torch.inf
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    torch.testing.assert_close(logsumexp(logits), logits.to(wide).exp().sum(dim=-1).log())
    far = logits + torch.linspace(-300, 300, len(logits)).to(dtype)[:, None]
    torch.testing.assert_close(logsumexp(far), far.to(wide).logsumexp(dim=-1))
    torch.testing.assert_close(logsumexp(logits[:, None]), logsumexp(logits)[:, None])
    torch.testing.assert_close(log_softmax(logits), logits.to(wide).log_softmax(dim=-1))
