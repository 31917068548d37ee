"""The block that treats each position by itself (Vaswani et al. 2017, section 3.3)."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.model.dropout import Dropout

# What comes out of `inner` is needed by nothing else, so that ReLU may change it in place.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "gelu": functional.gelu,
}


class FeedForward(nn.Module):
    """outer(activation(inner(x))), with dropout between the two."""

    def __init__(
        self, dim: int, inner_dim: int, activation: Literal["relu", "gelu"], dropout: float
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, inner_dim)
        self.outer = nn.Linear(inner_dim, dim)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., D) for states (..., D)."""
        outer: Tensor = self.outer(self.dropout(self.activation(self.inner(states))))
        return outer
