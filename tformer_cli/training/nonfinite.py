"""What becomes of a training whose loss or gradient is not finite.

The loop skips the batch and leaves the weights. After `MAX_FAILURES` such batches in a row the
weights have diverged: the training rolls back to a checkpoint and goes on from there without the
batches that failed, at a learning rate lower by `ROLLBACK_FACTOR`. After `MAX_ROLLBACKS` it gives
up. All of it is a function of the saved progress, so a resumed run decides as an unbroken one.
"""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Literal

from torch import Tensor, nn

from tformer_cli.corpus.batch import Batch
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.step import TrainState, accumulate_gradients

MAX_FAILURES = 3
MAX_ROLLBACKS = 3
ROLLBACK_FACTOR = 0.5

Verdict = Literal["go on", "roll back", "give up"]


def verdict(progress: TrainingProgress) -> Verdict:
    """Return what to do after a batch that was skipped."""
    if progress.num_consecutive_skips < MAX_FAILURES:
        return "go on"
    return "roll back" if progress.num_rollbacks < MAX_ROLLBACKS else "give up"


def rolled_back(failed: TrainingProgress, saved: TrainingProgress) -> TrainingProgress:
    """Return the progress from which to try again, after rolling back from `failed` to `saved`."""
    return dataclasses.replace(
        saved,
        environment=failed.environment,
        skipped_batches=failed.skipped_batches,
        learning_rate_factor=failed.learning_rate_factor * ROLLBACK_FACTOR,
        num_rollbacks=failed.num_rollbacks + 1,
    )


def first_not_finite(state: TrainState, micro_batches: Sequence[Batch]) -> str:
    """Send the micro-batches of a step through the model again, and name what fails first.

    All processes call it, and all return what the first of them found.

    Returns:
        The first module whose output is not finite; or the last weight whose gradient is not, as
        gradients flow backward; or the loss.
    """
    names: list[str] = []
    num_tokens = sum(batch.num_target_tokens for batch in micro_batches)

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        def check(module: nn.Module, inputs: object, output: object) -> None:
            if not names and not _is_finite(output):
                names.append(name)

        return check

    modules = [(name, module) for name, module in state.model.named_modules() if name]
    handles = [module.register_forward_hook(hook(name)) for name, module in modules]
    try:
        accumulate_gradients(state, micro_batches, num_tokens)
    finally:
        for handle in handles:
            handle.remove()
    names += [
        f"the gradient of {name}"
        for name, weight in reversed(list(state.model.named_parameters()))
        if weight.grad is not None and not _is_finite(weight.grad)
    ]
    state.optimizer.zero_grad(set_to_none=True)
    gathered = list(chain.from_iterable(state.world.gather(names[:1])))
    return gathered[0] if gathered else "the loss"


def _is_finite(output: object) -> bool:
    """Return whether all tensors in what a module returns are finite."""
    if isinstance(output, Tensor):
        return bool(output.isfinite().all())
    if isinstance(output, tuple):
        return all(map(_is_finite, output))
    if dataclasses.is_dataclass(output):
        return all(_is_finite(getattr(output, part.name)) for part in dataclasses.fields(output))
    return True
