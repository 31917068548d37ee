"""Our modules with weights that are made of another's: what they say, and their gradients.

The weights are expressions of the other's parameters: copied, scaled, or laid out in another order.
So, whatever that does to gradients, both sides have gradients of the same parameters.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

Module = TypeVar("Module", bound=nn.Module)
Weights = Mapping[str, Tensor]


def under(name: str, weights: Weights) -> dict[str, Tensor]:
    """Return the weights of a part by the names that they have in the whole."""
    return {f"{name}.{key}": weight for key, weight in weights.items()}


def renamed(theirs: nn.Module, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return weights and biases of parts that they call by another name: ours, then theirs."""
    return {
        f"{mine}.{key}": weight
        for mine, other in names.items()
        for key, weight in theirs.get_submodule(other).named_parameters()
    }


def randomized(module: Module, std: float = 0.5) -> Module:
    """Draw all weights anew: as they begin, biases and norms do nothing."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module


def loaded(ours: Module, weights: Weights) -> Module:
    """Return our module with these weights, which must be all that it has."""
    assert dict(ours.named_parameters()).keys() == weights.keys()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(weights[name])
    return ours


class Whole(nn.Module):
    """A method of a module in position of `forward`, all that `functional_call` calls."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, *arguments: object) -> object:
        return getattr(self.module, self.method)(*arguments)


def called(ours: nn.Module, weights: Weights, *arguments: object, method: str = "forward"):
    """Return what our module says with these weights, which must be all that it has."""
    assert dict(ours.named_parameters()).keys() == weights.keys()
    return functional_call(Whole(ours, method), under("module", weights), arguments)


def assert_same(
    ours: Tensor, theirs: Tensor, sources: Iterable[Tensor], **tolerance: float
) -> None:
    """Hold two outputs, and their gradients with respect to each source, to each other."""
    torch.testing.assert_close(ours, theirs, **tolerance)
    direction, sources = torch.randn_like(theirs), list(sources)
    mine, reference = (
        torch.autograd.grad((said * direction).sum(), sources) for said in (ours, theirs)
    )
    for gradient, expected in zip(mine, reference, strict=True):
        torch.testing.assert_close(gradient, expected, **tolerance)
