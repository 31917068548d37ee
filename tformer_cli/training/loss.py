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


# Rows of logits that are exponentiated at once: few enough for the processor's cache. A GPU takes
# so many that it is busy, and that they need little memory in float32.
CHUNK_ROWS = 64
GPU_CHUNK_ROWS = 4096


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
        total = _sum_exp(logits, highest)
        log_total = total.log() + highest
        right = logits.gather(-1, targets[:, None])[:, 0]
        nll = (log_total - right).sum()
        uniform = nll
        if smoothing > 0:
            uniform = (log_total - logits.mean(dim=-1, dtype=log_total.dtype)).sum()
        loss = (1 - smoothing) * nll + smoothing * uniform
        num_correct = (right == highest).sum()
        ctx.save_for_backward(logits, targets, highest, total)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(nll, num_correct)
        return loss, nll, num_correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, highest, total = ctx.saved_tensors
        smoothing, outer = ctx.smoothing, gradients[0]
        # In bfloat16, log(total) would lose so many digits that probabilities were off by 3%; the
        # highest logit loses none, and 1 / total few.
        gradient = logits.sub_(highest[:, None]).exp_()
        gradient.mul_((outer / total).to(logits.dtype)[:, None])
        gradient.sub_(outer * (smoothing / logits.shape[-1]))
        right = (-(1 - smoothing) * outer).to(logits.dtype).expand(len(targets), 1)
        gradient.scatter_add_(-1, targets[:, None], right)
        return gradient, None, None


def _sum_exp(logits: Tensor, highest: Tensor) -> Tensor:
    """Return sum exp(x - highest) of each row, in float32 at least."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    rows_at_once = CHUNK_ROWS if logits.device.type == "cpu" else GPU_CHUNK_ROWS
    totals = [
        rows.sub(top[:, None]).to(wide).exp_().sum(dim=-1)
        for rows, top in zip(
            torch.split(logits, rows_at_once), torch.split(highest, rows_at_once), strict=True
        )
    ]
    return torch.cat(totals)
