"""The training loss."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class LossSums(NamedTuple):
    """Sums over target tokens; whoever wants means divides by the tokens of the whole step.

    Attributes:
        loss: cross-entropy against the smoothed targets, in nats; the one that has a gradient.
        nll: cross-entropy against the targets themselves, in nats.
        num_correct: tokens whose target has the highest logit.
    """

    loss: Tensor
    nll: Tensor
    num_correct: Tensor


def smoothed_nll_sum(logits: Tensor, targets: Tensor, smoothing: float) -> LossSums:
    """Return the cross-entropy summed over tokens.

    The target distribution is (1 - e) * onehot + e / V (Szegedy et al. 2016, section 7), so the
    loss of a token is logsumexp(x) - (1 - e) * x[target] - e * mean(x).

    Args:
        logits: (tokens, V); the gradient is written over them, so nobody may read them later.
        targets: (tokens,) the right ids.
        smoothing: e.
    """
    return LossSums(*_SmoothedNll.apply(logits, targets, smoothing))  # type: ignore[no-untyped-call]


# Rows of logits that are exponentiated at once: few enough for the processor's cache.
CHUNK_ROWS = 64


class _SmoothedNll(torch.autograd.Function):
    """The gradient of a token is softmax(x) - (1 - e) * onehot - e / V.

    Logits are the largest tensor of a step. Composed from torch's own operations the loss holds
    several of their size and passes over them many times; here the gradient takes their place.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        highest = logits.amax(dim=-1)
        log_total = _log_sum_exp(logits, highest)
        right = logits.gather(-1, targets[:, None])[:, 0]
        nll = (log_total - right).sum()
        uniform = nll
        if smoothing > 0:
            uniform = (log_total - logits.mean(dim=-1, dtype=log_total.dtype)).sum()
        loss = (1 - smoothing) * nll + smoothing * uniform
        num_correct = (right == highest).sum()
        ctx.save_for_backward(logits, targets, log_total)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(nll, num_correct)
        return loss, nll, num_correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, log_total = ctx.saved_tensors
        smoothing = ctx.smoothing
        gradient = logits.sub_(log_total[:, None].to(logits.dtype)).exp_()
        gradient.sub_(smoothing / logits.shape[-1])
        right = torch.full_like(targets, -(1 - smoothing), dtype=logits.dtype)[:, None]
        gradient.scatter_add_(-1, targets[:, None], right)
        return gradient.mul_(gradients[0]), None, None


def _log_sum_exp(logits: Tensor, highest: Tensor) -> Tensor:
    """Return log sum exp of each row, in float32 at least."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    if logits.device.type != "cpu":
        return logits.logsumexp(dim=-1).to(wide)
    totals = [
        rows.sub(top[:, None]).to(wide).exp_().sum(dim=-1)
        for rows, top in zip(
            torch.split(logits, CHUNK_ROWS), torch.split(highest, CHUNK_ROWS), strict=True
        )
    ]
    return torch.cat(totals).log_() + highest
