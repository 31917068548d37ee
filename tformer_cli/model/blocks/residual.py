"""How a block is added to what it reads: where the norm stands, and what the residual weighs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from tformer_cli.config.schema.model import TransformerConfig

Block = Callable[[Tensor], Tensor]
Residual = Callable[[Tensor, nn.Module, Block, nn.Module], Tensor]


def pre_norm(states: Tensor, norm: nn.Module, block: Block, dropout: nn.Module) -> Tensor:
    """Return x + dropout(block(norm(x))) (Xiong et al. 2020)."""
    residual: Tensor = states + dropout(block(norm(states)))
    return residual


def post_norm(states: Tensor, norm: nn.Module, block: Block, dropout: nn.Module) -> Tensor:
    """Return norm(x + dropout(block(x))) (Vaswani et al. 2017, section 3.1)."""
    residual: Tensor = norm(states + dropout(block(states)))
    return residual


def deep_norm(
    states: Tensor, norm: nn.Module, block: Block, dropout: nn.Module, *, alpha: float
) -> Tensor:
    """Return norm(alpha x + dropout(block(x))) (Wang et al. 2022, section 4.1)."""
    residual: Tensor = norm(states * alpha + dropout(block(states)))
    return residual


class DeepNorm(NamedTuple):
    """The two constants of a stack (Wang et al. 2022, figure 2).

    Attributes:
        alpha: what the residual weighs.
        beta: what the first weights of what a block adds are multiplied by.
    """

    alpha: float
    beta: float


@dataclass(frozen=True, slots=True)
class Depth:
    """How deep a stack is, and what that asks of its residuals.

    Attributes:
        num_layers: of the stack.
        deep_norm: its constants.
    """

    num_layers: int
    deep_norm: DeepNorm


def alone(num_layers: int) -> Depth:
    """Return the depth of a stack that stands alone."""
    constants = DeepNorm((2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25)
    return Depth(num_layers, constants)


def encoder_decoder_depths(num_encoder_layers: int, num_decoder_layers: int) -> tuple[Depth, Depth]:
    """Return the depths of two stacks of which one looks at the other."""
    together = (num_encoder_layers**4 * num_decoder_layers) ** (1 / 16)
    encoder = DeepNorm(0.81 * together, 0.87 / together)
    decoder = DeepNorm((3 * num_decoder_layers) ** 0.25, (12 * num_decoder_layers) ** -0.25)
    return Depth(num_encoder_layers, encoder), Depth(num_decoder_layers, decoder)


def build_residual(config: TransformerConfig, depth: Depth) -> Residual:
    """Return what the layers of a stack add their blocks by."""
    if config.norm_position == "deep":
        return partial(deep_norm, alpha=depth.deep_norm.alpha)
    return pre_norm if config.norm_position == "pre" else post_norm
