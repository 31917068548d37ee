"""The training loop: a generator that yields a report after each optimizer step.

Gradient accumulation: the loss of each micro-batch is sent backward before the next one's forward
pass, and the optimizer moves once for all of them.

A step that runs out of memory is redone in smaller micro-batches. A gradient that overflows in
float16 is redone with a lower loss scale. A loss or gradient that is not finite all the same leaves
the weights as they are and yields a `NonFiniteStep`.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.device import (
    autocast,
    derive_seed,
    empty_cache,
    seed_device,
    suppress_out_of_memory,
)
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.model.network import Network
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.ema import MovingAverage
from tformer_cli.training.loss import loss_sums
from tformer_cli.training.optim import build_optimizer, set_learning_rate
from tformer_cli.training.part_norms import PartReport, watch_parts
from tformer_cli.training.recovery import LossScale, in_halves
from tformer_cli.training.schedules import Schedule, build_schedule


@dataclass(slots=True)
class TrainState:
    """What a training step changes, and the settings of the step."""

    model: Network
    optimizer: torch.optim.Optimizer
    scheduler: Schedule
    config: TrainingConfig
    device: torch.device
    precision: torch.dtype
    seed: int  # of the dropout of every step
    world: World = SINGLE_PROCESS
    ema: MovingAverage | None = None  # of the weights, if the config asks for one
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    first_ids: Sequence[int] = ()  # of the tags in `training.tags_first`
    trains_tags_alone: bool = False

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
        first_ids: Sequence[int] = (),
    ) -> Self:
        """Return the state of a model before its first step."""
        scheduler = build_schedule(
            config.schedule, peak=config.optimizer.learning_rate, max_steps=config.max_steps
        )
        ema = None if config.ema_decay is None else MovingAverage(model, config.ema_decay)
        optimizer = build_optimizer(config.optimizer, model)
        state = cls(model, optimizer, scheduler, config, device, precision, seed, world, ema=ema)
        state.first_ids = first_ids
        state.start_phase(1)
        return state

    def start_phase(self, step: int) -> None:
        """Freeze the weights that a step does not train.

        Where other weights are to be trained than before, the optimizer starts anew: Adam counts
        the steps of a matrix, and most of its rows have taken none while tags are trained alone.
        """
        trains_tags_alone = self.config.trains_tags_alone(step)
        if trains_tags_alone == self.trains_tags_alone:
            return
        self.trains_tags_alone = trains_tags_alone
        if trains_tags_alone:
            self.model.freeze_all_but_source_embeddings()
        else:
            self.model.freeze(self.config.freeze)
        self.optimizer = build_optimizer(self.config.optimizer, self.model)

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.progress.step

    @property
    def data_position(self) -> DataPosition:
        """The next batch to train on."""
        return DataPosition(*self.progress.data_position)

    @property
    def loss_scale(self) -> LossScale:
        factor = self.progress.loss_scale
        if factor is None:
            return LossScale.initial(self.precision)
        return LossScale(factor, self.progress.num_loss_scale_steps)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The batch of one optimizer step, and where it stands in the data."""

    micro_batches: Sequence[Batch]  # of this process; none if there are too few rows
    position: DataPosition
    next_position: DataPosition


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step."""

    step: int  # counted from 1
    next_position: DataPosition
    loss: float  # smoothed cross-entropy per target token before the step, in nats
    nll: float  # the same without smoothing
    accuracy: float  # share of the target tokens that the model ranks first
    divergence: float | None  # of two passes, in nats a target token; None with a single one
    num_tokens: int  # target tokens, EOS included, padding excluded
    learning_rate: float
    grad_norm: float  # before clipping
    seconds: float  # wall-clock time, waiting for the batch included
    num_oom_micro_batches: int  # after memory ran out and they were halved; 0 if it did not
    loss_scale: LossScale  # of the next step
    parts: Mapping[str, PartReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NonFiniteStep:
    """A step not taken because its loss or gradient was not finite; the next has its number."""

    step: int
    batch: StepBatch
    loss: float
    grad_norm: float


def train_steps(
    state: TrainState, batches: Iterable[StepBatch]
) -> Iterator[StepReport | NonFiniteStep]:
    """Take one optimizer step per batch, and advance `state.progress`.

    The loss is summed over the target tokens of all micro-batches and divided by their number over
    all processes, so the cut of a batch into micro-batches changes the gradient by rounding only.
    """
    started = time.perf_counter()
    for batch in batches:
        yield _take_step(state, batch, started)
        started = time.perf_counter()


def _take_step(state: TrainState, batch: StepBatch, started: float) -> StepReport | NonFiniteStep:
    step = state.step + 1
    state.start_phase(step)
    model, optimizer, config = state.model, state.optimizer, state.config
    gradient = _step_gradient(state, batch.micro_batches)
    if not gradient.is_finite:
        optimizer.zero_grad(set_to_none=True)
        state.progress = skip_batch(state.progress, batch.position, batch.next_position)
        return NonFiniteStep(step, batch, gradient.loss, gradient.norm)
    is_watched = config.log_parameter_norms and step % config.report_every == 0
    part_reports = watch_parts(model, gradient.norms) if is_watched else dict
    if config.clip_norm is not None and gradient.norm > config.clip_norm:
        torch._foreach_mul_(_gradients(model), config.clip_norm / gradient.norm)
    learning_rate = state.scheduler(step) * state.progress.learning_rate_factor
    set_learning_rate(optimizer, learning_rate)
    # It moves the weights with a gradient, those of this process.
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    state.world.broadcast_from_owners_([weight.detach() for weight in model.trained_parameters()])
    if state.ema is not None:
        state.ema.update(model, step)
    report = StepReport(
        step=step,
        next_position=batch.next_position,
        loss=gradient.loss,
        nll=gradient.nll,
        accuracy=gradient.accuracy,
        divergence=None if config.consistency is None else gradient.divergence,
        num_tokens=gradient.num_tokens,
        learning_rate=learning_rate,
        grad_norm=gradient.norm,
        seconds=time.perf_counter() - started,
        num_oom_micro_batches=gradient.num_oom_micro_batches,
        loss_scale=gradient.loss_scale.stepped(state.precision),
        parts=part_reports(),
    )
    state.progress = _advance(state.progress, report)
    return report


def skip_batch(
    progress: TrainingProgress, position: DataPosition, next_position: DataPosition
) -> TrainingProgress:
    """Return the progress after a batch whose loss or gradient was not finite."""
    return replace(
        progress,
        data_position=(next_position.epoch, next_position.batch),
        skipped_batches=(*progress.skipped_batches, (position.epoch, position.batch)),
        num_consecutive_skips=progress.num_consecutive_skips + 1,
    )


def _advance(progress: TrainingProgress, report: StepReport) -> TrainingProgress:
    return replace(
        progress,
        score=None,
        num_consecutive_skips=0,
        step=report.step,
        data_position=(report.next_position.epoch, report.next_position.batch),
        num_tokens=progress.num_tokens + report.num_tokens,
        seconds=progress.seconds + report.seconds,
        loss_scale=report.loss_scale.factor,
        num_loss_scale_steps=report.loss_scale.num_steps,
    )


class _Gradient(NamedTuple):
    """A gradient that lies in the `grad` of the weights of each process, in numbers."""

    loss: float
    nll: float
    accuracy: float
    divergence: float
    norm: float
    norms: Tensor  # (P,) of the gradient of each weight that is not frozen
    num_tokens: int
    num_oom_micro_batches: int
    loss_scale: LossScale

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


def _step_gradient(state: TrainState, micro_batches: Sequence[Batch]) -> _Gradient:
    """Leave the gradient of a step in the weights of each process, summed over all and unscaled.

    The loss scale is lowered until the gradient is finite, if it can be and the loss is.
    """
    world, scale = state.world, state.loss_scale
    num_tokens = int(
        world.all_reduce_sum(sum(batch.num_target_tokens for batch in micro_batches))[0]
    )
    while True:
        sums, num_oom_micro_batches = accumulate_gradients(
            state, micro_batches, num_tokens, scale.factor
        )
        _reduce_gradients(state.model, world)
        if state.trains_tags_alone:
            _keep_gradient_rows(state.model.source_embeddings, state.first_ids)
        if scale.factor != 1.0:
            torch._foreach_mul_(_gradients(state.model), 1.0 / scale.factor)
        norms = torch.stack(torch._foreach_norm(_gradients(state.model)))
        world.all_reduce_([sums, norms])
        # One synchronization with the device per step.
        numbers = (*(sums / num_tokens), torch.linalg.vector_norm(norms))
        loss, nll, accuracy, divergence, norm = torch.stack(numbers).tolist()
        num_oom_micro_batches = int(world.all_reduce_sum(num_oom_micro_batches)[0])
        gradient = _Gradient(
            loss, nll, accuracy, divergence, norm, norms, num_tokens, num_oom_micro_batches, scale
        )
        if gradient.is_finite or not math.isfinite(loss) or not scale.can_be_lowered:
            return gradient
        scale = scale.lowered()
        state.optimizer.zero_grad(set_to_none=True)


def _reduce_gradients(model: Network, world: World) -> None:
    """Sum the gradient of each weight in the process that owns it, and free it in the others."""
    weights = model.trained_parameters()
    gradients = [
        # A process without rows has no micro-batch.
        torch.zeros_like(weight) if weight.grad is None else weight.grad
        for weight in weights
    ]
    world.reduce_to_owners_(gradients)
    for weight, gradient, owner in zip(weights, gradients, world.owners(weights), strict=True):
        weight.grad = gradient if owner == world.rank else None


def _keep_gradient_rows(weight: Tensor, rows: Sequence[int]) -> None:
    """Set the gradient of other rows to zero: without weight decay, they stay to the bit."""
    if weight.grad is not None:  # another process owns it
        kept = weight.grad[list(rows)]
        weight.grad.zero_()[list(rows)] = kept


def _gradients(model: Network) -> list[Tensor]:
    """Return the gradient of each trained weight, a scalar of 0 where another process owns it."""
    weights = model.trained_parameters()
    zero = weights[0].new_zeros(())
    return [zero if weight.grad is None else weight.grad for weight in weights]


def accumulate_gradients(
    state: TrainState, micro_batches: Sequence[Batch], num_tokens: int, loss_scale: float = 1.0
) -> tuple[Tensor, int]:
    """Accumulate the gradient of the next step in the weights; halve micro-batches if memory ends.

    The loss is divided by `num_tokens`, the target tokens of all processes. Halves draw other
    dropout masks than the whole does.

    Returns:
        (4,) unscaled sums over target tokens of smoothed loss, NLL, tokens ranked first and
        divergence of two passes; and the number of micro-batches after halving, 0 without.
    """
    num_oom_micro_batches = 0
    while True:
        with suppress_out_of_memory():
            return _accumulate(state, micro_batches, num_tokens, loss_scale), num_oom_micro_batches
        state.optimizer.zero_grad(set_to_none=True)
        empty_cache(state.device)
        micro_batches = in_halves(micro_batches, where=f"step {state.step + 1}")
        num_oom_micro_batches = len(micro_batches)


def _accumulate(
    state: TrainState, micro_batches: Sequence[Batch], num_tokens: int, loss_scale: float
) -> Tensor:
    model = state.model.train()
    # Dropout is a function of the step alone, so a resumed run draws what an unbroken one did.
    dropout_seed = derive_seed(state.seed, "dropout", state.step + 1) + state.world.rank
    seed_device(state.device, dropout_seed)
    # Without any token the loss is not finite, and the batch is skipped.
    factor = loss_scale / num_tokens if num_tokens else math.inf
    totals = torch.zeros(4, device=state.device)
    for batch in (batch.to(state.device) for batch in micro_batches):
        with autocast(state.device, state.precision):
            sums = loss_sums(model, batch, state.config, factor)
        # Where layer drop skips all layers that are trained, the gradient is zero.
        if sums.objective.requires_grad:
            sums.objective.backward()  # type: ignore[no-untyped-call]
        totals += torch.stack((sums.loss.detach(), sums.nll, sums.num_correct, sums.divergence))
    return totals
