"""The block that treats each position by itself (Vaswani et al. 2017, section 3.3)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.config.schema.model import TransformerConfig
from tformer_cli.model.blocks.dropout import Dropout
from tformer_cli.model.blocks.linear import concatenate_linears

Activation = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """outer(activation(inner(x))), with dropout between the two."""

    def __init__(
        self, dim: int, inner_dim: int, activation: Activation, dropout: float, *, bias: bool
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, inner_dim, bias=bias)
        self.outer = nn.Linear(inner_dim, dim, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., D) for states (..., D)."""
        outer: Tensor = self.outer(self.dropout(self.activation(self.inner(states))))
        return outer

    def output_projections(self) -> tuple[nn.Linear, ...]:
        """Return the maps that what the block adds goes through, the last one at the end."""
        return self.inner, self.outer

    def fused(self) -> "FeedForward":
        """Return the same for weights that no longer change.

        Nothing else needs what comes out of `inner`, so that ReLU may change it in place. With
        gradients that would take longer, for it is a view.
        """
        if self.activation is torch.relu:
            self.activation = torch.relu_
        return self


class GatedFeedForward(nn.Module):
    """outer(activation(gate(x)) * inner(x)) (Shazeer 2020), with dropout before `outer`."""

    def __init__(
        self, dim: int, inner_dim: int, activation: Activation, dropout: float, *, bias: bool
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, inner_dim, bias=bias)
        self.inner = nn.Linear(dim, inner_dim, bias=bias)
        self.outer = nn.Linear(inner_dim, dim, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., D) for states (..., D)."""
        gated = self.activation(self.gate(states)) * self.inner(states)
        outer: Tensor = self.outer(self.dropout(gated))
        return outer

    def output_projections(self) -> tuple[nn.Linear, ...]:
        """Return the maps that what the block adds goes through, the last one at the end.

        The gate weighs it only: the authors of DeepNorm let its weights begin as all others.
        """
        return self.inner, self.outer

    def fused(self) -> "GatedFeedForward":
        """Return the same for weights that no longer change, with less to do."""
        return FusedGatedFeedForward(self)


class FusedGatedFeedForward(GatedFeedForward):
    """The same with one product for what is gated and its gate.

    For weights that no longer change.
    """

    def __init__(self, parts: GatedFeedForward) -> None:
        """Take over the weights of `parts`."""
        nn.Module.__init__(self)
        self.projection = concatenate_linears(parts.gate, parts.inner)
        self.outer, self.activation = parts.outer, parts.activation

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., D) for states (..., D)."""
        gate, inner = self.projection(states).chunk(2, dim=-1)
        outer: Tensor = self.outer(self.activation(gate) * inner)
        return outer


PLAIN: dict[str, Activation] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}
GATED: dict[str, Activation] = {"swiglu": functional.silu, "geglu": functional.gelu}


def build_feedforward(config: TransformerConfig) -> FeedForward | GatedFeedForward:
    """Return the block that a config names."""
    dropout = config.own_dropout(config.feedforward_dropout)
    sizes = config.dim, config.feedforward_dim
    if config.activation in GATED:
        activation = GATED[config.activation]
        return GatedFeedForward(*sizes, activation, dropout, bias=config.bias)
    return FeedForward(*sizes, PLAIN[config.activation], dropout, bias=config.bias)
