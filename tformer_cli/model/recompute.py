"""Ways to apply a layer in training: keep what it computes, or compute it again."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LayerCall = Callable[..., Tensor]
"""Applies its first argument, a layer, to the others."""


def kept(layer: nn.Module, *inputs: object) -> Tensor:
    """Apply a layer; all that its gradient needs stays in memory until the backward pass."""
    states: Tensor = layer(*inputs)
    return states


def recomputed(layer: nn.Module, *inputs: object) -> Tensor:
    """Apply a layer; in training only its inputs stay (Chen et al. 2016, section 4.1).

    The backward pass applies it again, with the random numbers it drew the first time, and goes
    on in the graph of that first time: gradients are equal to the bit.
    """
    if not layer.training:
        return kept(layer, *inputs)
    states: Tensor = checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=True)
    return states
