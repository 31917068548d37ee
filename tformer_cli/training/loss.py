"""The training loss."""

import math
from collections.abc import Sequence
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
        logits: (tokens, V); they are overwritten, so nobody may read them later.
        targets: (tokens,) the right ids.
        smoothing: e.
    """
    return LossSums(*_SmoothedNll.apply(logits, targets, smoothing))  # type: ignore[no-untyped-call]


# Rows that a CPU passes over again and again: few enough for its cache.
CHUNK_ROWS = 64
BITS = math.log2(math.e)


class _SmoothedNll(torch.autograd.Function):
    """The gradient of a token is softmax(x) - (1 - e) * onehot - e / V.

    Logits are the largest tensor of a step. Composed from torch's own operations the loss holds
    several of their size and passes over them many times, through memory; here exp(x - max x)
    takes their place, and the gradient its place.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        right = logits.gather(-1, targets[:, None])[:, 0]
        parts = []
        for rows in _chunks(logits):
            highest, mean = rows.amax(dim=-1), rows.mean(dim=-1, dtype=wide)
            # In bfloat16, x minus log sum exp would lose so many digits that probabilities were
            # off by 3%; x minus the highest x loses none.
            total = _exp_(rows.sub_(highest[:, None])).sum(dim=-1, dtype=wide)
            parts.append((highest, mean, total))
        highest, mean, total = map(torch.cat, zip(*parts, strict=True))
        log_total = total.log() + highest
        nll = (log_total - right).sum()
        loss = (1 - smoothing) * nll + smoothing * (log_total - mean).sum()
        num_correct = (right == highest).sum()
        right_share = (right.to(wide) - highest).exp() / total
        ctx.save_for_backward(logits, targets, total, right_share)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(nll, num_correct)
        return loss, nll, num_correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        exponentials, targets, total, right_share = ctx.saved_tensors
        smoothing, outer = ctx.smoothing, gradients[0]
        shares = (outer / total).to(exponentials.dtype)[:, None]
        uniform = outer * (smoothing / exponentials.shape[-1])
        for rows, share in zip(_chunks(exponentials), _chunks(shares), strict=True):
            rows.mul_(share).sub_(uniform)
        # By itself, for in bfloat16 a probability near one would cancel to nothing.
        right = (right_share - (1 - smoothing)) * outer - uniform
        # By an index, for `scatter_` would turn all of them to float32 and back.
        tokens = torch.arange(len(targets), device=targets.device)
        exponentials[tokens, targets] = right.to(exponentials.dtype)
        return exponentials, None, None


def _exp_(powers: Tensor) -> Tensor:
    """Raise e to these powers, in place."""
    if powers.dtype == torch.float32 and powers.device.type == "cpu":
        # Of two it takes less than half the time; in bfloat16 the product would lose digits.
        return powers.mul_(BITS).exp2_()
    return powers.exp_()


def _chunks(rows: Tensor) -> Sequence[Tensor]:
    """Return views of some rows at a time; a GPU is busy with nothing less than all."""
    return torch.split(rows, CHUNK_ROWS if rows.device.type == "cpu" else len(rows))
