"""Position-wise feed-forward network (Vaswani et al. 2017, section 3.3)."""

import re
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.config.schema.model import TransformerConfig
from tformer_cli.kernels.dropout import Dropout

Activation = Callable[[Tensor], Tensor]

# Checkpoints and exports of older versions have these weights.
_CURRENT_NAMES = {"inner": "up", "outer": "down"}
_FORMER_NAME = re.compile(r"(?<=\bfeedforward\.)(inner|outer)(?=\.)")


def current_weight_name(name: str) -> str:
    """Return the name of a weight, which an older version may have written."""
    return _FORMER_NAME.sub(lambda match: _CURRENT_NAMES[match[1]], name)


class FeedForward(nn.Module):
    """down(activation(up(x))), with dropout before `down`."""

    def __init__(
        self, dim: int, feedforward_dim: int, activation: Activation, dropout: float, *, bias: bool
    ) -> None:
        super().__init__()
        self.up = nn.Linear(dim, feedforward_dim, bias=bias)
        self.down = nn.Linear(feedforward_dim, dim, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (..., D) for hidden states (..., D)."""
        down: Tensor = self.down(self.dropout(self.activation(self.up(hidden_states))))
        return down

    def output_projections(self) -> tuple[nn.Linear, ...]:
        """Return the linear layers that scale the block's output, the last one last."""
        return self.up, self.down


class GatedFeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)) (Shazeer 2020), with dropout before `down`."""

    def __init__(
        self, dim: int, feedforward_dim: int, activation: Activation, dropout: float, *, bias: bool
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, feedforward_dim, bias=bias)
        self.up = nn.Linear(dim, feedforward_dim, bias=bias)
        self.down = nn.Linear(feedforward_dim, dim, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (..., D) for hidden states (..., D)."""
        gated = self.activation(self.gate(hidden_states)) * self.up(hidden_states)
        down: Tensor = self.down(self.dropout(gated))
        return down

    def output_projections(self) -> tuple[nn.Linear, ...]:
        """Return the linear layers that scale the block's output, the last one last.

        The gate is not among them: the authors of DeepNorm do not scale its weights.
        """
        return self.up, self.down


PLAIN_ACTIVATIONS: Mapping[str, Activation] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}
GATED_ACTIVATIONS: Mapping[str, Activation] = {
    "swiglu": functional.silu,
    "geglu": functional.gelu,
    "geglu_tanh": partial(functional.gelu, approximate="tanh"),
}


def build_feedforward(config: TransformerConfig) -> FeedForward | GatedFeedForward:
    """Return the feed-forward block of a layer."""
    dropout = config.own_dropout(config.feedforward_dropout)
    sizes = config.dim, config.feedforward_dim
    if config.activation in GATED_ACTIVATIONS:
        activation = GATED_ACTIVATIONS[config.activation]
        return GatedFeedForward(*sizes, activation, dropout, bias=config.bias)
    return FeedForward(*sizes, PLAIN_ACTIVATIONS[config.activation], dropout, bias=config.bias)
