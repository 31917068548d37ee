"""Where in a model a number that is not finite comes from."""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import chain

from torch import Tensor, nn

from tformer_cli.corpus.batch import Batch
from tformer_cli.training.step import TrainState, accumulate_gradients


def first_not_finite(train_state: TrainState, batches: Sequence[Batch], step: int) -> str:
    """Send a step's batches through the model again, and name what fails first.

    Several processes ask together, and all name what the first of them has found.

    Returns:
        The first module whose output is not finite; where there is none, the last weight whose
        gradient is not, for gradients flow backwards; and otherwise the loss.
    """
    found: list[str] = []
    num_tokens = sum(batch.num_target_tokens for batch in batches)

    def listening(name: str) -> Callable[[nn.Module, object, object], None]:
        def listen(module: nn.Module, inputs: object, output: object) -> None:
            if not found and not _is_finite(output):
                found.append(name)

        return listen

    model = train_state.model
    hooks = [module.register_forward_hook(listening(name)) for name, module in _named(model)]
    try:
        accumulate_gradients(train_state, batches, step, num_tokens)
    finally:
        for hook in hooks:
            hook.remove()
    found += [
        f"the gradient of {name}"
        for name, weight in reversed(list(model.named_parameters()))
        if weight.grad is not None and not _is_finite(weight.grad)
    ]
    train_state.optimizer.zero_grad(set_to_none=True)
    named = list(chain.from_iterable(train_state.world.gather(found[:1])))
    return named[0] if named else "the loss"


def _named(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if name]


def _is_finite(output: object) -> bool:
    """Return whether all tensors in what a module returns are finite."""
    if isinstance(output, Tensor):
        return bool(output.isfinite().all())
    if isinstance(output, tuple):
        return all(map(_is_finite, output))
    if dataclasses.is_dataclass(output):
        return all(_is_finite(getattr(output, part.name)) for part in dataclasses.fields(output))
    return True
