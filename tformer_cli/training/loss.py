"""The loss of a batch, computed together with the output projection.

It is label-smoothed cross-entropy, alone or with the consistency of two passes over the batch.
`torch.nn.functional.linear_cross_entropy` is alike, but older versions of torch lack it, and it
returns the loss alone, not the other sums that a step reports.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.training import (
    ConsistencyConfig,
    RDropConfig,
    SimCutConfig,
    TrainingConfig,
)
from tformer_cli.corpus.batch import Batch
from tformer_cli.device import can_compile
from tformer_cli.kernels.softmax import exp_
from tformer_cli.model.blocks.embeddings import KeptTokens
from tformer_cli.model.network import Network
from tformer_cli.text.special_tokens import EOS_ID

# Rows whose logits exist at a time: enough to fill a matmul, and a fraction of a batch.
ROWS_ON_CPU, ROWS_ON_GPU = 1 << 10, 1 << 13
# Rows that a CPU passes over several times: few enough for its cache.
CACHED_ROWS = 64

Kernel = Callable[..., tuple[Tensor, Tensor]]
"""From logits and targets to sums, whose first is minimized, and its gradient by logits."""


class LossSums(NamedTuple):
    """Sums over target tokens, in nats; means divide them by the tokens of the whole step."""

    objective: Tensor  # what is minimized; its gradient is multiplied by `factor`
    loss: Tensor  # smoothed cross-entropy, a part of the objective or all of it
    nll: Tensor  # without smoothing
    num_correct: Tensor  # tokens whose target has the highest logit
    divergence: Tensor  # between the predictions of two passes; 0 with a single one


class Objective(NamedTuple):
    """Weights of what two passes over a batch minimize, with predictions P and Q of each token."""

    cross_entropies: tuple[float, float]  # of P and of Q; they sum to 1
    divergences: tuple[float, float]  # KL(P || Q) and KL(Q || P)


def loss_sums(model: Network, batch: Batch, config: TrainingConfig, factor: float) -> LossSums:
    """Return the loss of a batch by the config; `factor` is that of `smoothed_nll_sum`."""
    output, smoothing, consistency = model.output, config.label_smoothing, config.consistency
    if consistency is None:
        hidden_states = model.hidden_states(
            batch.source, batch.source_mask, batch.target_in, batch.target_positions
        )
        return smoothed_nll_sum(hidden_states, output, batch.targets, smoothing, factor)
    kept = None
    if isinstance(consistency, SimCutConfig):
        kept = cut_tokens(batch, consistency.cutoff)
    hidden_states = paired_hidden_states(model, batch, kept)
    objective = objective_of(consistency)
    return consistency_sum(hidden_states, output, batch.targets, smoothing, objective, factor)


def smoothed_nll_sum(
    hidden_states: Tensor, output: nn.Linear, targets: Tensor, smoothing: float, factor: float = 1.0
) -> LossSums:
    """Return the label-smoothed cross-entropy (Szegedy et al. 2016, section 7) summed over tokens.

    The target distribution is (1 - e) * onehot + e / V, so the loss of a token with logits x is
    logsumexp(x) - (1 - e) * x[target] - e * mean(x), where e is the smoothing. Hidden states (N, D)
    are projected to logits (N, V); targets are ids (N,). `factor` multiplies the gradient before it
    is rounded: without a loss scale most of a softmax underflows in float16.
    """
    kernel = _kernel(_sums_and_gradient, hidden_states.device)
    kernel = partial(kernel, smoothing=smoothing, factor=factor)
    loss, nll, num_correct = _chunked(hidden_states, output, targets, 1, kernel)
    return LossSums(loss, loss, nll, num_correct, torch.zeros_like(nll))


def consistency_sum(
    hidden_states: Tensor,
    output: nn.Linear,
    targets: Tensor,
    smoothing: float,
    objective: Objective,
    factor: float = 1.0,
) -> LossSums:
    """Return the weighted cross-entropies of two passes and the divergences between them, summed.

    Hidden states (2N, D) are those of the first pass, then those of the second; other arguments are
    those of `smoothed_nll_sum`. The divergence is a mean by the weights of the objective.
    """
    kernel = _kernel(_paired_sums_and_gradient, hidden_states.device)
    kernel = partial(kernel, smoothing=smoothing, factor=factor, objective=objective)
    sums = LossSums(*_chunked(hidden_states, output, targets, 2, kernel))
    return sums._replace(divergence=sums.divergence / sum(objective.divergences))


def objective_of(config: ConsistencyConfig) -> Objective:
    """Return the weights of SimCut (Gao et al. 2022) or of R-Drop (Liang et al. 2021).

    Those of R-Drop are half of the paper's (equation 4), which sums two cross-entropies: a gradient
    then has the size of that of a single pass.
    """
    match config:
        case SimCutConfig(weight=weight):
            return Objective(cross_entropies=(1.0, 0.0), divergences=(weight, 0.0))
        case RDropConfig(weight=weight):
            return Objective(cross_entropies=(0.5, 0.5), divergences=(weight / 4, weight / 4))


def paired_hidden_states(model: Network, batch: Batch, kept: KeptTokens | None = None) -> Tensor:
    """Return hidden states (2N, D) of a batch (B, ...) that passes twice, (2B, ...) at once.

    What the passes draw comes from the generator that dropout comes from, so it is a function of
    the seed, the step and the process.
    """
    positions = batch.target_positions
    return model.hidden_states(
        batch.source.repeat(2, 1),
        batch.source_mask.repeat(2, 1),
        batch.target_in.repeat(2, 1),
        torch.cat((positions, positions + batch.target_mask.numel())),
        kept,
    )


def cut_tokens(batch: Batch, cutoff: float) -> KeptTokens:
    """Return which tokens keep their embedding: all in the first pass, not so in the second.

    Each token is cut with the probability `cutoff` (Shen et al. 2020, token cutoff), except for the
    EOS of a source and the start of a target.
    """
    source, target = (
        torch.rand(ids.shape, device=ids.device) >= cutoff
        for ids in (batch.source, batch.target_in)
    )
    source |= batch.source == EOS_ID
    target[:, 0] = True
    return KeptTokens(*(torch.cat((torch.ones_like(kept), kept)) for kept in (source, target)))


def _chunked(
    hidden_states: Tensor, output: nn.Linear, targets: Tensor, num_passes: int, kernel: Kernel
) -> tuple[Tensor, ...]:
    sums: tuple[Tensor, ...] = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden_states, output.weight, output.bias, output, targets, num_passes, kernel
    )
    return sums


class _ChunkedLoss(torch.autograd.Function):
    """From hidden states to sums, some rows at a time.

    The hidden states (PN, D) are those of one pass or more over the same targets (N,). The gradient
    with respect to the logits is computed in the forward pass, chunk by chunk; the backward pass
    only scales it. All logits at once would be the largest tensor of a step.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output: nn.Linear,
        targets: Tensor,
        num_passes: int,
        kernel: Kernel,
    ) -> tuple[Tensor, ...]:
        states_grad = torch.empty_like(hidden_states)
        # A frozen projection has none.
        weight_grad = torch.zeros_like(weight) if weight.requires_grad else None
        bias_grad = None if bias is None or not bias.requires_grad else torch.zeros_like(bias)
        shape = num_passes, len(targets), hidden_states.shape[-1]
        size = ROWS_ON_CPU if hidden_states.device.type == "cpu" else ROWS_ON_GPU
        size //= num_passes
        totals = []
        # A chunk without rows has sums as well.
        for start in range(0, max(len(targets), 1), size):
            rows = slice(start, start + size)
            chunk = hidden_states.view(shape)[:, rows]
            logits = output(chunk.flatten(0, 1))
            with torch.autocast(hidden_states.device.type, enabled=False):
                sums, gradient = kernel(logits, targets[rows])
                totals.append(sums)
                weight = weight.to(gradient.dtype)
                states_grad.view(shape)[:, rows] = (gradient @ weight).view_as(chunk)
                if weight_grad is not None:
                    weight_grad += gradient.t() @ chunk.flatten(0, 1).to(gradient.dtype)
                if bias_grad is not None:
                    bias_grad += gradient.sum(dim=0)
            # Or they would exist beside those of the next chunk.
            del logits, gradient
        ctx.save_for_backward(states_grad, weight_grad, bias_grad)
        minimized, *others = torch.stack(totals).sum(dim=0).unbind()
        ctx.mark_non_differentiable(*others)
        return minimized, *others

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        minimized_grad, *_ = gradients
        scaled = [
            None if saved is None else saved.mul_(minimized_grad) for saved in ctx.saved_tensors
        ]
        return *scaled, None, None, None, None


def _kernel(function: Kernel, device: torch.device) -> Kernel:
    return compiled_kernel(function) if can_compile(device) else function


@functools.cache
def compiled_kernel(function: Kernel, backend: str | Callable[..., Any] = "inductor") -> Kernel:
    """Return a function of logits as kernels that read all of them a few times, not eleven."""
    return torch.compile(function, dynamic=True, backend=backend)


def _sums_and_gradient(
    logits: Tensor, targets: Tensor, smoothing: float, factor: float
) -> tuple[Tensor, Tensor]:
    """Return the three sums, (3,), and the gradient of the loss; it overwrites the logits (N, V).

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
        total = exp_(rows.sub_(highest[:, None])).sum(dim=-1, dtype=wide)
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


def _paired_sums_and_gradient(
    logits: Tensor, targets: Tensor, smoothing: float, factor: float, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Return five sums, (5,), and the gradient of the objective; it overwrites the logits (2N, V).

    A cross-entropy has the gradient of `_sums_and_gradient`. KL(P || Q) has that of
    P * (log P - log Q - KL(P || Q)) for the logits of P, and Q - P for those of Q.
    """
    (first, second), (forward, backward) = objective
    wide = torch.promote_types(logits.dtype, torch.float32)
    size = CACHED_ROWS // 2 if logits.device.type == "cpu" else max(len(targets), 1)
    pairs = torch.split(logits.view(2, len(targets), logits.shape[-1]), size, dim=1)
    totals = []
    for pair, labels in zip(pairs, torch.split(targets, size), strict=True):
        tokens = torch.arange(len(labels), device=labels.device)
        is_correct = pair[:, tokens, labels] == pair.amax(dim=-1)
        log_probs = pair.log_softmax(dim=-1, dtype=wide)
        probs = exp_(log_probs.clone())
        nll = -log_probs[:, tokens, labels]
        loss = (1 - smoothing) * nll - smoothing * log_probs.mean(dim=-1)
        divergence = torch.zeros((), dtype=wide, device=logits.device)
        for own, other, entropy, toward, away in (
            (0, 1, first, forward, backward),
            (1, 0, second, backward, forward),
        ):
            gradient = log_probs[own] - log_probs[other]
            divergences = (probs[own] * gradient).sum(dim=-1)
            gradient.sub_(divergences[:, None]).mul_(toward).add_(entropy + away)
            gradient.mul_(probs[own]).sub_(probs[other] * away)
            gradient.sub_(entropy * smoothing / logits.shape[-1])
            gradient[tokens, labels] -= entropy * (1 - smoothing)
            pair[own] = gradient.mul_(factor)
            divergence += toward * divergences.sum()
        loss, nll, num_correct = (
            first * one.sum() + second * two.sum() for one, two in (loss, nll, is_correct)
        )
        totals.append(torch.stack((loss + divergence, loss, nll, num_correct, divergence)))
    return torch.stack(totals).sum(dim=0), logits
