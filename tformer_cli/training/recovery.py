"""Recover from a step that fails: halved micro-batches, a lower loss scale, a rollback.

A loss or gradient that is not finite all the same skips its batch and leaves the weights. After
`MAX_FAILURES` such batches in a row the weights have diverged: the training rolls back to a
checkpoint and continues from there without the batches that failed, at a learning rate lower by
`ROLLBACK_FACTOR`. After `MAX_ROLLBACKS` it gives up. All of it is a function of the saved progress,
so a resumed run decides as an unbroken one.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from tformer_cli.corpus.batch import Batch
from tformer_cli.device import out_of_memory_as
from tformer_cli.errors import OutOfMemory, Problem, TrainingError
from tformer_cli.storage.state import TrainingProgress

INITIAL_LOSS_SCALE = 2.0**16
# Steps after which a larger loss scale is tried.
GROWTH_INTERVAL = 2000
MAX_FAILURES = 3
MAX_ROLLBACKS = 3
ROLLBACK_FACTOR = 0.5


@dataclass(frozen=True, slots=True)
class LossScale:
    """Loss scaling for float16 (Micikevicius et al. 2018, section 3.2).

    Gradients of the scaled loss are unscaled before they are used. The factor is a power of two,
    which changes no digit; without float16 it stays 1.
    """

    factor: float = 1.0
    num_steps: int = 0  # since the factor changed

    @classmethod
    def initial(cls, precision: torch.dtype) -> Self:
        return cls(INITIAL_LOSS_SCALE if precision == torch.float16 else 1.0)

    @property
    def can_be_lowered(self) -> bool:
        return self.factor > 1.0

    def lowered(self) -> Self:
        """Return the loss scale with which to redo a step whose gradient overflowed."""
        return replace(self, factor=self.factor / 2, num_steps=0)

    def stepped(self, precision: torch.dtype) -> Self:
        """Return the loss scale of the step after one that succeeded."""
        if precision == torch.float16 and self.num_steps + 1 == GROWTH_INTERVAL:
            return replace(self, factor=self.factor * 2, num_steps=0)
        return replace(self, num_steps=self.num_steps + 1)


def in_halves(batches: Sequence[Batch], *, where: str) -> list[Batch]:
    """Cut every batch of several rows in two, each padded to its own longest row."""
    if all(len(batch.source) == 1 for batch in batches):
        longest = max(batches, key=lambda batch: batch.source.shape[1] + batch.target_in.shape[1])
        raise OutOfMemory(
            where,
            "memory ran out on a single pair of sentences",
            got=f"{longest.source.shape[1]} and {longest.target_in.shape[1]} tokens",
            remedy="lower data.filters.max_length, or train a smaller model",
        )
    return [half for batch in batches for half in _halves(batch)]


def _halves(batch: Batch) -> Iterator[Batch]:
    middle = (len(batch.source) + 1) // 2
    for rows in (slice(0, middle), slice(middle, None)):
        if len(batch.source[rows]) > 0:
            yield batch.select(rows)


def memory_shortage_reported(where: str) -> AbstractContextManager[None]:
    """Turn running out of memory where nothing can be redone into an error about `where`."""
    remedy = (
        "lower training.batch_tokens, or train a smaller model; what was saved before is intact"
    )
    return out_of_memory_as(TrainingError, Problem(where, "memory ran out", remedy=remedy))


def next_action(progress: TrainingProgress) -> Literal["continue", "roll back", "give up"]:
    """Return what to do after a batch that was skipped."""
    if progress.num_consecutive_skips < MAX_FAILURES:
        return "continue"
    return "roll back" if progress.num_rollbacks < MAX_ROLLBACKS else "give up"


def rolled_back(failed: TrainingProgress, saved: TrainingProgress) -> TrainingProgress:
    """Return the progress from which to try again, after rolling back from `failed` to `saved`."""
    return replace(
        saved,
        environment=failed.environment,
        skipped_batches=failed.skipped_batches,
        learning_rate_factor=failed.learning_rate_factor * ROLLBACK_FACTOR,
        num_rollbacks=failed.num_rollbacks + 1,
    )


def first_not_finite(model: nn.Module, forward_backward: Callable[[], object]) -> str | None:
    """Return what of a forward and a backward pass is not finite first, or None.

    It is the first module whose output is not finite; or the last weight whose gradient is not, as
    gradients flow backward.
    """
    names: list[str] = []

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        def check(module: nn.Module, inputs: object, output: object) -> None:
            if not names and not _is_finite(output):
                names.append(name)

        return check

    modules = [(name, module) for name, module in model.named_modules() if name]
    handles = [module.register_forward_hook(hook(name)) for name, module in modules]
    try:
        # Compiled layers call no hooks.
        with torch.compiler.set_stance("force_eager"):
            forward_backward()
    finally:
        for handle in handles:
            handle.remove()
    names += [
        f"the gradient of {name}"
        for name, weight in reversed(list(model.named_parameters()))
        if weight.grad is not None and not _is_finite(weight.grad)
    ]
    return next(iter(names), None)


def _is_finite(output: object) -> bool:
    if isinstance(output, Tensor):
        return bool(output.isfinite().all())
    if isinstance(output, tuple):
        return all(map(_is_finite, output))
    if dataclasses.is_dataclass(output):
        return all(_is_finite(getattr(output, part.name)) for part in dataclasses.fields(output))
    return True
