"""The training loop: a generator that yields a report after each optimiser step.

A step that cannot be taken does not stop it. Where memory runs out the step is redone in smaller
pieces; where loss or gradient is not finite the weights stay, and a `Fault` is yielded instead.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from tformer_cli.config.schema import TrainingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.bucketing import Position
from tformer_cli.device import autocast, derive_seed
from tformer_cli.training.loss import smoothed_nll_sum
from tformer_cli.training.memory import give_back_memory, in_halves, is_out_of_memory
from tformer_cli.training.optim import set_learning_rate
from tformer_cli.training.schedules import Schedule


@dataclass(frozen=True, slots=True)
class Group:
    """The batch of an optimiser step, cut into micro-batches.

    Attributes:
        batches: the micro-batches.
        place: of the batch in the data.
        following: place of the next one.
    """

    batches: Sequence[Batch]
    place: Position
    following: Position


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
        num_pieces: micro-batches that the step was redone in because memory ran out; 0 if it
            did not.
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
    num_pieces: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """A step that was not taken, because its loss or gradient was not finite.

    Attributes:
        step: the number it would have had; the next step has it.
        group: what it would have learnt from.
        loss: as in a report.
        grad_norm: likewise.
    """

    step: int
    group: Group
    loss: float
    grad_norm: float


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
    learner: Learner,
    groups: Iterable[Group],
    first_step: int,
    *,
    learning_rate_factor: float = 1.0,
) -> Iterator[StepReport | Fault]:
    """Take one optimiser step for each group of micro-batches, as long as groups come.

    The loss is summed over the target tokens of the group and divided by their number, so cutting
    a batch into micro-batches changes the gradient by rounding only.

    Args:
        learner: what learns.
        groups: what each step learns from.
        first_step: number of the first step taken.
        learning_rate_factor: of the schedule's learning rate.

    Yields:
        A report of the step taken, or the fault that kept it from being taken.

    Raises:
        TrainingError: a single pair of sentences does not fit into memory.
    """
    model, optimizer, config = learner.model, learner.optimizer, learner.config
    max_norm = math.inf if config.clip_norm is None else config.clip_norm
    step = first_step
    for group in groups:
        started = time.perf_counter()
        num_tokens = sum(batch.num_target_tokens for batch in group.batches)
        totals, num_pieces = leave_gradient(learner, group.batches, step)
        grad_norm = clip_grad_norm_(model.parameters(), max_norm).item()
        loss, nll, accuracy = (totals / num_tokens).tolist()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            optimizer.zero_grad(set_to_none=True)
            yield Fault(step, group, loss, grad_norm)
            continue
        learning_rate = learner.schedule(step) * learning_rate_factor
        set_learning_rate(optimizer, learning_rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield StepReport(
            step=step,
            position=group.following,
            loss=loss,
            nll=nll,
            accuracy=accuracy,
            num_tokens=num_tokens,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            seconds=time.perf_counter() - started,
            num_pieces=num_pieces,
        )
        step += 1


def leave_gradient(learner: Learner, batches: Sequence[Batch], step: int) -> tuple[Tensor, int]:
    """Leave the gradient of a step in the weights, in smaller pieces where memory runs out.

    Pieces draw other dropout than the whole does.

    Returns:
        (3,) sums over target tokens: smoothed loss, unsmoothed loss, number ranked first; and how
        many pieces were needed, 0 where memory did not run out.

    Raises:
        TrainingError: a single pair of sentences does not fit into memory.
    """
    num_pieces = 0
    while True:
        try:
            return _sum_gradients(learner, batches, step), num_pieces
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Out here the error has gone, and with it the tensors that its traceback kept alive.
        learner.optimizer.zero_grad(set_to_none=True)
        give_back_memory(learner.device)
        batches = in_halves(batches, where=f"step {step}")
        num_pieces = len(batches)


def _sum_gradients(learner: Learner, batches: Sequence[Batch], step: int) -> Tensor:
    learner.model.train()
    # Dropout is a function of the step alone, so a resumed run draws what an unbroken one did.
    torch.manual_seed(derive_seed(learner.seed, "dropout", step))
    num_tokens = sum(batch.num_target_tokens for batch in batches)
    totals = torch.zeros(3, device=learner.device)
    for batch in (batch.to(learner.device) for batch in batches):
        targets = batch.target_out[batch.target_mask]
        with autocast(learner.device, learner.precision):
            logits = learner.model(
                batch.source, batch.source_mask, batch.target_in, batch.target_mask
            )
        sums = smoothed_nll_sum(logits, targets, learner.config.label_smoothing)
        (sums.loss / num_tokens).backward()  # type: ignore[no-untyped-call]
        totals += torch.stack((sums.loss.detach(), sums.nll, sums.num_correct))
    return totals
