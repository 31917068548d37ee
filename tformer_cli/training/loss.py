"""Label-smoothed cross-entropy, computed together with the output projection.

Like torch.nn.functional.linear_cross_entropy (torch 2.13), which lacks the sums and older versions.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tformer_cli.device import can_compile

# Rows whose logits exist at a time: enough to fill a matmul, and a fraction of a batch.
ROWS_ON_CPU, ROWS_ON_GPU = 1 << 10, 1 << 13
# Rows that a CPU passes over several times: few enough for its cache.
CACHED_ROWS = 64
LOG2_E = math.log2(math.e)

Kernel = Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]


class LossSums(NamedTuple):
    """Sums over target tokens, in nats; means divide them by the tokens of the whole step."""

    loss: Tensor  # smoothed cross-entropy; its gradient is multiplied by `factor`
    nll: Tensor  # without smoothing
    num_correct: Tensor  # tokens whose target has the highest logit


def smoothed_nll_sum(
    hidden_states: Tensor, output: nn.Linear, targets: Tensor, smoothing: float, factor: float = 1.0
) -> LossSums:
    """Return the label-smoothed cross-entropy (Szegedy et al. 2016, section 7) summed over tokens.

    The target distribution is (1 - e) * onehot + e / V, so the loss of a token with logits x is
    logsumexp(x) - (1 - e) * x[target] - e * mean(x), where e is the smoothing. Hidden states (N, D)
    are projected to logits (N, V); targets are ids (N,). `factor` multiplies the gradient before it
    is rounded: without a loss scale most of a softmax underflows in float16.
    """
    sums = _SmoothedNll.apply(  # type: ignore[no-untyped-call]
        hidden_states, output.weight, output.bias, output, targets, smoothing, factor
    )
    return LossSums(*sums)


class _SmoothedNll(torch.autograd.Function):
    """From hidden states to the loss, some rows at a time.

    The gradient with respect to the logits is computed in the forward pass, chunk by chunk; the
    backward pass only scales it. All logits at once would be the largest tensor of a step.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output: nn.Linear,
        targets: Tensor,
        smoothing: float,
        factor: float,
    ) -> tuple[Tensor, ...]:
        states_grad = torch.empty_like(hidden_states)
        weight_grad = torch.zeros_like(weight)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        wide = torch.promote_types(weight.dtype, torch.float32)
        sums = torch.zeros(3, dtype=wide, device=hidden_states.device)
        size = ROWS_ON_CPU if hidden_states.device.type == "cpu" else ROWS_ON_GPU
        kernel = compiled_kernel() if can_compile(hidden_states.device) else _sums_and_gradient
        for start in range(0, len(hidden_states), size):
            rows = slice(start, start + size)
            logits = output(hidden_states[rows])
            with torch.autocast(hidden_states.device.type, enabled=False):
                chunk_sums, gradient = kernel(logits, targets[rows], smoothing, factor)
                sums += chunk_sums
                weight = weight.to(gradient.dtype)
                states_grad[rows] = gradient @ weight
                weight_grad += gradient.t() @ hidden_states[rows].to(gradient.dtype)
                if bias_grad is not None:
                    bias_grad += gradient.sum(dim=0)
            # Or they would exist beside those of the next chunk.
            del logits, gradient
        ctx.save_for_backward(states_grad, weight_grad, bias_grad)
        loss, nll, num_correct = sums.unbind()
        ctx.mark_non_differentiable(nll, num_correct)
        return loss, nll, num_correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        loss_grad, *_ = gradients
        scaled = [None if saved is None else saved.mul_(loss_grad) for saved in ctx.saved_tensors]
        return *scaled, None, None, None, None


@functools.cache
def compiled_kernel(backend: str | Callable[..., Any] = "inductor") -> Kernel:
    """Return `_sums_and_gradient` as kernels that read all logits a few times, not eleven."""
    return torch.compile(_sums_and_gradient, dynamic=True, backend=backend)


def _sums_and_gradient(
    logits: Tensor, targets: Tensor, smoothing: float, factor: float
) -> tuple[Tensor, Tensor]:
    """Return the three sums, (3,), and the gradient of the loss, in place of the logits (N, V).

    It is softmax(x) - (1 - e) * onehot - e / V for each token, times the factor.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    target_logits = logits.gather(-1, targets[:, None])[:, 0]
    uniform = smoothing / logits.shape[-1]
    statistics = []
    # Torch's own operations would pass over all logits many times, through memory; a few rows stay
    # in the cache of a CPU. A GPU is filled by nothing less than all rows.
    is_cpu = logits.device.type == "cpu"
    for rows in torch.split(logits, CACHED_ROWS) if is_cpu else (logits,):
        highest, mean = rows.amax(dim=-1), rows.mean(dim=-1, dtype=wide)
        # In bfloat16, x - logsumexp(x) loses so many digits that probabilities are off by 3%;
        # x - max(x) loses none.
        total = _exp_(rows.sub_(highest[:, None])).sum(dim=-1, dtype=wide)
        rows.mul_((factor / total).to(rows.dtype)[:, None]).sub_(uniform * factor)
        statistics.append((highest, mean, total))
    highest, mean, total = map(torch.cat, zip(*statistics, strict=True))
    # In float32, since in bfloat16 a probability near one would cancel to nothing.
    target_share = (target_logits.to(wide) - highest).exp() / total
    # By an index: `scatter_` would convert all logits to float32 and back.
    tokens = torch.arange(len(targets), device=targets.device)
    target_gradient = factor * (target_share - (1 - smoothing) - uniform)
    logits[tokens, targets] = target_gradient.to(logits.dtype)
    log_total = total.log() + highest
    nll = (log_total - target_logits).sum()
    loss = (1 - smoothing) * nll + smoothing * (log_total - mean).sum()
    return torch.stack((loss, nll, (target_logits == highest).sum())), logits


def _exp_(powers: Tensor) -> Tensor:
    """Raise e to these powers, in place."""
    if powers.dtype == torch.float32 and powers.device.type == "cpu":
        # exp2 takes less than half the time; in bfloat16 the product would lose digits.
        return powers.mul_(LOG2_E).exp2_()
    return powers.exp_()
