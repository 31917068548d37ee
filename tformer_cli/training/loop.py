"""The training loop: a generator that yields a report after each optimiser step."""

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tformer_cli.config.schema import TrainingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.bucketing import Position
from tformer_cli.device import autocast, derive_seed
from tformer_cli.errors import TrainingError
from tformer_cli.training.loss import smoothed_nll_sum
from tformer_cli.training.optim import set_learning_rate
from tformer_cli.training.schedules import Schedule


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimiser step did.

    Attributes:
        step: its number, counted from 1.
        position: the next batch in the data.
        loss: smoothed cross-entropy a target token, in nats, before the step.
        nll: unsmoothed cross-entropy a target token, in nats; perplexity is its exponential.
        accuracy: share of the target tokens that the model ranked first.
        num_tokens: target tokens, `</s>` included, padding not.
        learning_rate: of this step.
        grad_norm: norm of the gradient before clipping.
        seconds: wall-clock time of the step.
    """

    step: int
    position: Position
    loss: float
    nll: float
    accuracy: float
    num_tokens: int
    learning_rate: float
    grad_norm: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Learner:
    """What a training step changes and what it goes by.

    Attributes:
        model: maps (source, source_mask, target, target_mask) to the logits of real positions.
        optimizer: moves its parameters.
        schedule: learning rate of a step.
        config: the other settings of the loop.
        device: where the model is.
        precision: number format of matrix products.
        seed: decides the dropout of every step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    config: TrainingConfig
    device: torch.device
    precision: torch.dtype
    seed: int


def train_steps(
    learner: Learner, groups: Iterator[tuple[list[Batch], Position]], first_step: int
) -> Iterator[StepReport]:
    """Take one optimiser step for each group of micro-batches, for ever.

    The loss is summed over the target tokens of the group and divided by their number, so cutting
    a batch into micro-batches changes the gradient by rounding only.

    Args:
        learner: what learns.
        groups: the micro-batches of each step, with the position in the data that follows.
        first_step: number of the first step taken.

    Raises:
        TrainingError: the loss or the gradient is not finite; the weights have not moved.
    """
    model, optimizer, config = learner.model, learner.optimizer, learner.config
    for step, (group, position) in zip(itertools.count(first_step), groups, strict=False):
        started = time.perf_counter()
        model.train()
        # Dropout is a function of the step alone, so a resumed run draws what an unbroken one did.
        torch.manual_seed(derive_seed(learner.seed, "dropout", step))
        num_tokens = sum(batch.num_target_tokens for batch in group)
        totals = torch.zeros(3, device=learner.device)
        for batch in (batch.to(learner.device) for batch in group):
            targets = batch.target_out[batch.target_mask]
            with autocast(learner.device, learner.precision):
                logits = model(batch.source, batch.source_mask, batch.target_in, batch.target_mask)
            sums = smoothed_nll_sum(logits, targets, config.label_smoothing)
            (sums.loss / num_tokens).backward()  # type: ignore[no-untyped-call]
            totals += torch.stack((sums.loss.detach(), sums.nll, sums.num_correct))
        max_norm = math.inf if config.clip_norm is None else config.clip_norm
        grad_norm = clip_grad_norm_(model.parameters(), max_norm).item()
        loss, nll, accuracy = (totals / num_tokens).tolist()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrainingError(
                f"step {step}",
                "the training diverged",
                got=f"loss {loss}, gradient norm {grad_norm}",
                remedy="lower training.optimizer.learning_rate or lengthen the warm-up",
            )
        learning_rate = learner.schedule(step)
        set_learning_rate(optimizer, learning_rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield StepReport(
            step=step,
            position=position,
            loss=loss,
            nll=nll,
            accuracy=accuracy,
            num_tokens=num_tokens,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            seconds=time.perf_counter() - started,
        )
