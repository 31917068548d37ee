"""Norms, and residual connections around blocks: pre-norm, post-norm and DeepNorm."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import TransformerConfig
from tformer_cli.kernels.rms_norm import rms_norm

Sublayer = Callable[[Tensor], Tensor]
Residual = Callable[[Tensor, nn.Module, Sublayer, nn.Module], Tensor]


class RMSNorm(nn.Module):
    """RMSNorm with a learned scale (Zhang and Sennrich 2019, section 4)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return normalized hidden states in the number format of the scale.

        So the output of matrix products in lower precision is normalized in full precision.
        """
        return rms_norm(hidden_states.to(self.weight.dtype), self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


def build_norm(kind: Literal["layer", "rms"], dim: int, epsilon: float, *, bias: bool) -> nn.Module:
    """Return LayerNorm (Ba et al. 2016), with or without bias, or RMSNorm."""
    if kind == "layer":
        return nn.LayerNorm(dim, eps=epsilon, bias=bias)
    return RMSNorm(dim, eps=epsilon)


def pre_norm(hidden_states: Tensor, norm: nn.Module, block: Sublayer, dropout: nn.Module) -> Tensor:
    """Return x + dropout(block(norm(x))) (Xiong et al. 2020)."""
    residual: Tensor = hidden_states + dropout(block(norm(hidden_states)))
    return residual


def post_norm(
    hidden_states: Tensor, norm: nn.Module, block: Sublayer, dropout: nn.Module
) -> Tensor:
    """Return norm(x + dropout(block(x))) (Vaswani et al. 2017, section 3.1)."""
    residual: Tensor = norm(hidden_states + dropout(block(hidden_states)))
    return residual


def deep_norm(
    hidden_states: Tensor, norm: nn.Module, block: Sublayer, dropout: nn.Module, *, alpha: float
) -> Tensor:
    """Return norm(alpha x + dropout(block(x))) (Wang et al. 2022, section 4.1)."""
    residual: Tensor = norm(hidden_states * alpha + dropout(block(hidden_states)))
    return residual


class DeepNorm(NamedTuple):
    """The constants of a stack (Wang et al. 2022, figure 2).

    Attributes:
        alpha: factor of the residual.
        beta: factor of the initial weights of values, outputs and feed-forward blocks.
    """

    alpha: float
    beta: float

    @classmethod
    def for_stack(cls, num_layers: int) -> "DeepNorm":
        """Return the constants of an encoder-only or decoder-only model."""
        return cls((2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25)

    @classmethod
    def for_encoder_decoder(
        cls, num_encoder_layers: int, num_decoder_layers: int
    ) -> "tuple[DeepNorm, DeepNorm]":
        """Return the constants of an encoder and of its decoder."""
        root = (num_encoder_layers**4 * num_decoder_layers) ** (1 / 16)
        decoder = cls((3 * num_decoder_layers) ** 0.25, (12 * num_decoder_layers) ** -0.25)
        return cls(0.81 * root, 0.87 / root), decoder


def build_residual(config: TransformerConfig, constants: DeepNorm) -> Residual:
    """Return the residual connection of all layers of a stack."""
    if config.norm_position == "deep":
        return partial(deep_norm, alpha=constants.alpha)
    return pre_norm if config.norm_position == "pre" else post_norm
