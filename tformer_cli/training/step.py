"""The training loop: a generator that yields a report after each optimiser step.

A step that cannot be taken does not stop it. Where memory runs out the step is redone in smaller
pieces, where a gradient overflows in float16 with a lower loss scale; where loss or gradient is not
finite all the same the weights stay, and a `NonFiniteStep` is yielded instead.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.device import autocast, derive_seed, empty_cache, is_out_of_memory, seed_device
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.model.network import Network
from tformer_cli.training.amp import LossScale
from tformer_cli.training.loss import smoothed_nll_sum
from tformer_cli.training.optim import build_optimizer, set_learning_rate
from tformer_cli.training.out_of_memory import in_halves
from tformer_cli.training.parts import PartReport, PartsWatch
from tformer_cli.training.schedules import Schedule, build_schedule


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The batch of an optimiser step, cut into micro-batches.

    Attributes:
        micro_batches: of this process; several processes may leave one without any.
        position: of the batch in the data.
        next_position: of the batch that follows.
    """

    micro_batches: Sequence[Batch]
    position: DataPosition
    next_position: DataPosition


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
        seconds: wall-clock time of the step, waiting for its batch included.
        num_pieces: micro-batches that the step was redone in because memory ran out; 0 if it
            did not.
        loss_scale: for the next step.
        parts: what it did to each part of the model, where `training.log_parameter_norms` asks
            for it.
    """

    step: int
    position: DataPosition
    loss: float
    nll: float
    accuracy: float
    num_tokens: int
    learning_rate: float
    grad_norm: float
    seconds: float
    num_pieces: int
    loss_scale: LossScale
    parts: Mapping[str, PartReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NonFiniteStep:
    """A step that was not taken, because its loss or gradient was not finite.

    Attributes:
        step: the number it would have had; the next step has it.
        group: what it would have learnt from.
        loss: as in a report.
        grad_norm: likewise.
    """

    step: int
    group: StepBatch
    loss: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class TrainState:
    """What a training step changes and what it goes by.

    Attributes:
        model: what learns.
        optimizer: moves its parameters.
        schedule: learning rate of a step.
        config: the other settings of the loop.
        device: where the model is.
        precision: number format of matrix products.
        seed: decides the dropout of every step.
        world: the processes that train together.
    """

    model: Network
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    config: TrainingConfig
    device: torch.device
    precision: torch.dtype
    seed: int
    world: World = SINGLE_PROCESS

    @classmethod
    def of(
        cls,
        model: Network,
        config: TrainingConfig,
        *,
        device: torch.device,
        precision: torch.dtype,
        seed: int,
        world: World = SINGLE_PROCESS,
    ) -> "TrainState":
        """Return a model with the optimiser and the schedule that a config asks for."""
        schedule = build_schedule(
            config.schedule, peak=config.optimizer.learning_rate, max_steps=config.max_steps
        )
        optimizer = build_optimizer(config.optimizer, model)
        return cls(model, optimizer, schedule, config, device, precision, seed, world)


def train_steps(
    train_state: TrainState,
    groups: Iterable[StepBatch],
    first_step: int,
    *,
    learning_rate_factor: float = 1.0,
    loss_scale: LossScale | None = None,
) -> Iterator[StepReport | NonFiniteStep]:
    """Take one optimiser step for each group of micro-batches, as long as groups come.

    The loss is summed over the target tokens of the group and divided by their number over all
    processes, so cutting a batch into micro-batches changes the gradient by rounding only.

    Args:
        train_state: what learns.
        groups: what each step learns from.
        first_step: number of the first step taken.
        learning_rate_factor: of the schedule's learning rate.
        loss_scale: for the first step, or None at the beginning of a training.

    Yields:
        A report of the step taken, or the fault that kept it from being taken.

    Raises:
        TrainingError: a single pair of sentences does not fit into memory.
    """
    model, optimizer, config = train_state.model, train_state.optimizer, train_state.config
    max_norm = math.inf if config.clip_norm is None else config.clip_norm
    scale = LossScale.first(train_state.precision) if loss_scale is None else loss_scale
    step = first_step
    for started, group in _awaited(groups):
        gradient = _finite_gradient(train_state, group.micro_batches, step, scale)
        if not gradient.is_finite:
            optimizer.zero_grad(set_to_none=True)
            yield NonFiniteStep(step, group, gradient.loss, gradient.norm)
            continue
        scale = gradient.loss_scale.stepped(train_state.precision)
        is_watched = config.log_parameter_norms and step % config.report_every == 0
        watch = PartsWatch(model) if is_watched else None
        if gradient.norm > max_norm:
            torch._foreach_mul_(_gradients(model), max_norm / gradient.norm)
        learning_rate = train_state.schedule(step) * learning_rate_factor
        set_learning_rate(optimizer, learning_rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield StepReport(
            step=step,
            position=group.next_position,
            loss=gradient.loss,
            nll=gradient.nll,
            accuracy=gradient.accuracy,
            num_tokens=gradient.num_tokens,
            learning_rate=learning_rate,
            grad_norm=gradient.norm,
            seconds=time.perf_counter() - started,
            num_pieces=gradient.num_pieces,
            loss_scale=scale,
            parts={} if watch is None else watch.reports(),
        )
        step += 1


def _awaited(groups: Iterable[StepBatch]) -> Iterator[tuple[float, StepBatch]]:
    """Yield each group with the time at which it was asked for."""
    coming = iter(groups)
    while True:
        asked = time.perf_counter()
        group = next(coming, None)
        if group is None:
            return
        yield asked, group


class _Gradient(NamedTuple):
    """What is known of a gradient that lies in the weights."""

    loss: float
    nll: float
    accuracy: float
    norm: float
    num_tokens: int
    num_pieces: int
    loss_scale: LossScale

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


def _finite_gradient(
    train_state: TrainState, batches: Sequence[Batch], step: int, scale: LossScale
) -> _Gradient:
    """Leave the gradient of a step in the weights, with a loss scale at which it is finite.

    Where there is no such scale, or the loss itself is not finite, it is left as it is.
    """
    world = train_state.world
    own_tokens = sum(batch.num_target_tokens for batch in batches)
    num_tokens = int(world.all_reduce_sum(own_tokens)[0])
    while True:
        totals, num_pieces = accumulate_gradients(
            train_state, batches, step, num_tokens, scale.factor
        )
        gradients = _gradients(train_state.model)
        world.all_reduce_([*gradients, totals])
        if scale.factor != 1.0:
            torch._foreach_mul_(gradients, 1.0 / scale.factor)
        means = (*(totals / num_tokens), get_total_norm(gradients))
        # Of numbers, one look at the device a step.
        loss, nll, accuracy, norm = torch.stack(means).tolist()
        num_pieces = int(world.all_reduce_sum(num_pieces)[0])
        gradient = _Gradient(loss, nll, accuracy, norm, num_tokens, num_pieces, scale)
        if gradient.is_finite or not math.isfinite(loss) or not scale.can_be_lowered:
            return gradient
        scale = scale.lowered()
        train_state.optimizer.zero_grad(set_to_none=True)


def _gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradient of each weight; zero where this process had nothing to learn from."""
    gradients: list[Tensor] = []
    for weight in model.parameters():
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        gradients.append(weight.grad)
    return gradients


def accumulate_gradients(
    train_state: TrainState,
    batches: Sequence[Batch],
    step: int,
    num_tokens: int,
    loss_scale: float = 1.0,
) -> tuple[Tensor, int]:
    """Leave the gradient of a step in the weights, in smaller pieces where memory runs out.

    Pieces draw other dropout than the whole does. With several processes it is the gradient of
    this one's share.

    Args:
        train_state: what learns.
        batches: what it learns from.
        step: number of the step.
        num_tokens: that the loss is divided by.
        loss_scale: that it is multiplied by.

    Returns:
        (3,) sums over target tokens: smoothed loss, unsmoothed loss, number ranked first; and how
        many pieces were needed, 0 where memory did not run out. The gradient is multiplied by
        `loss_scale`, they are not.

    Raises:
        TrainingError: a single pair of sentences does not fit into memory.
    """
    num_pieces = 0
    while True:
        try:
            return _sum_gradients(train_state, batches, step, num_tokens, loss_scale), num_pieces
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Out here the error has gone, and with it the tensors that its traceback kept alive.
        train_state.optimizer.zero_grad(set_to_none=True)
        empty_cache(train_state.device)
        batches = in_halves(batches, where=f"step {step}")
        num_pieces = len(batches)


def _sum_gradients(
    train_state: TrainState, batches: Sequence[Batch], step: int, num_tokens: int, loss_scale: float
) -> Tensor:
    model = train_state.model.train()
    # Dropout is a function of the step alone, so a resumed run draws what an unbroken one did.
    dropout_seed = derive_seed(train_state.seed, "dropout", step) + train_state.world.rank
    seed_device(train_state.device, dropout_seed)
    totals = torch.zeros(3, device=train_state.device)
    for batch in (batch.to(train_state.device) for batch in batches):
        targets = batch.target_out[batch.target_mask]
        with autocast(train_state.device, train_state.precision):
            states = model.wanted_states(
                batch.source, batch.source_mask, batch.target_in, batch.target_mask
            )
            sums = smoothed_nll_sum(
                states,
                model.output,
                targets,
                train_state.config.label_smoothing,
                # Of no tokens at all the loss is no number, and nothing is learnt from it.
                factor=loss_scale / num_tokens if num_tokens else math.inf,
            )
        sums.loss.backward()  # type: ignore[no-untyped-call]
        totals += torch.stack((sums.loss.detach(), sums.nll, sums.num_correct))
    return totals
