"""The training loss, with the map to logits in it: training has no other use for them."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class LossSums(NamedTuple):
    """Sums over target tokens; whoever wants means divides by the tokens of the whole step.

    Attributes:
        loss: cross-entropy against the smoothed targets, in nats; the one that has a gradient,
            which is that of `factor` times the loss.
        nll: cross-entropy against the targets themselves, in nats.
        num_correct: tokens whose target has the highest logit.
    """

    loss: Tensor
    nll: Tensor
    num_correct: Tensor


def smoothed_nll_sum(
    states: Tensor, output: nn.Linear, targets: Tensor, smoothing: float, factor: float = 1.0
) -> LossSums:
    """Return the cross-entropy summed over tokens.

    The target distribution is (1 - e) * onehot + e / V (Szegedy et al. 2016, section 7), so the
    loss of a token with logits x is logsumexp(x) - (1 - e) * x[target] - e * mean(x).

    Args:
        states: (N, D), one for each token.
        output: from states to logits (N, V).
        targets: (N,) the right ids.
        smoothing: e.
        factor: of the gradient, applied before it is rounded: in float16 most of a softmax is
            too small to be there without a loss scale.
    """
    sums = _SmoothedNll.apply(  # type: ignore[no-untyped-call]
        states, output.weight, output.bias, output, targets, smoothing, factor
    )
    return LossSums(*sums)


# Rows whose logits are there at a time: enough to fill a product, and a fraction of a batch.
ROWS_ON_CPU, ROWS_ON_GPU = 1 << 10, 1 << 13
# Rows that a CPU passes over again and again: few enough for its cache.
CACHED_ROWS = 64
BITS = math.log2(math.e)


class _SmoothedNll(torch.autograd.Function):
    """Goes from states to the loss and back, for some rows at a time.

    All logits at once would be the largest tensor of a step by far. What is wanted of them is a
    number and its gradient, and that gradient follows from them alone: so it is taken at once,
    and the backward pass only weighs it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output: nn.Linear,
        targets: Tensor,
        smoothing: float,
        factor: float,
    ) -> tuple[Tensor, ...]:
        to_states, to_weight = torch.empty_like(states), torch.zeros_like(weight)
        to_bias = None if bias is None else torch.zeros_like(bias)
        wide = torch.promote_types(weight.dtype, torch.float32)
        sums = torch.zeros(3, dtype=wide, device=states.device)
        for part in _parts(states):
            logits = output(states[part])
            with torch.autocast(states.device.type, enabled=False):
                own_sums, gradient = _sums_and_gradient(logits, targets[part], smoothing, factor)
                sums += own_sums
                weight = weight.to(gradient.dtype)
                to_states[part] = gradient @ weight
                to_weight += gradient.t() @ states[part].to(gradient.dtype)
                if to_bias is not None:
                    to_bias += gradient.sum(dim=0)
            # Or they would still be there beside the next ones.
            del logits, gradient
        ctx.save_for_backward(to_states, to_weight, to_bias)
        loss, nll, num_correct = sums.unbind()
        ctx.mark_non_differentiable(nll, num_correct)
        return loss, nll, num_correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        outer, *_ = gradients
        weighed = [None if known is None else known.mul_(outer) for known in ctx.saved_tensors]
        return *weighed, None, None, None, None


def _parts(states: Tensor) -> Iterator[slice]:
    """Yield the rows that are gone through together."""
    count = ROWS_ON_CPU if states.device.type == "cpu" else ROWS_ON_GPU
    return (slice(start, start + count) for start in range(0, len(states), count))


def _sums_and_gradient(
    logits: Tensor, targets: Tensor, smoothing: float, factor: float
) -> tuple[Tensor, Tensor]:
    """Return the three sums, (3,), and the gradient of the loss, which takes the logits' place.

    It is softmax(x) - (1 - e) * onehot - e / V for each token, times the factor; logits are (N, V).
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    right = logits.gather(-1, targets[:, None])[:, 0]
    uniform = smoothing / logits.shape[-1]
    found = []
    # Composed from torch's own operations the loss would pass over logits many times, through
    # memory; a few rows stay in the cache of a CPU. A GPU is busy with nothing less than all.
    for rows in torch.split(logits, CACHED_ROWS if logits.device.type == "cpu" else len(logits)):
        highest, mean = rows.amax(dim=-1), rows.mean(dim=-1, dtype=wide)
        # In bfloat16, x minus log sum exp would lose so many digits that probabilities were off
        # by 3%; x minus the highest x loses none.
        total = _exp_(rows.sub_(highest[:, None])).sum(dim=-1, dtype=wide)
        rows.mul_((factor / total).to(rows.dtype)[:, None]).sub_(uniform * factor)
        found.append((highest, mean, total))
    highest, mean, total = map(torch.cat, zip(*found, strict=True))
    # By itself, for in bfloat16 a probability near one would cancel to nothing.
    right_share = (right.to(wide) - highest).exp() / total
    # By an index, for `scatter_` would turn all of them to float32 and back.
    tokens = torch.arange(len(targets), device=targets.device)
    right_gradient = factor * (right_share - (1 - smoothing) - uniform)
    logits[tokens, targets] = right_gradient.to(logits.dtype)
    log_total = total.log() + highest
    nll = (log_total - right).sum()
    loss = (1 - smoothing) * nll + smoothing * (log_total - mean).sum()
    return torch.stack((loss, nll, (right == highest).sum())), logits


def _exp_(powers: Tensor) -> Tensor:
    """Raise e to these powers, in place."""
    if powers.dtype == torch.float32 and powers.device.type == "cpu":
        # Of two it takes less than half the time; in bfloat16 the product would lose digits.
        return powers.mul_(BITS).exp2_()
    return powers.exp_()
