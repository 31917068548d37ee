"""Linear maps of weights that no longer change."""

import torch
from torch import Tensor, nn
from torch.nn import functional

# With more rows all products are as fast.
FEW_ROWS = 8
# With fewer inputs a single row, which is the slowest of all, wants its weights in long rows.
MANY_INPUTS = 256


def prepare_for_few_rows(linear: nn.Linear) -> nn.Linear:
    """Return the same map, which reads its weights faster where the states are a few rows.

    torch's products of large matrices and few rows take up to four times as long on a CPU as
    memory does. Weights that are narrower than their inputs stay as they are.
    """
    if linear.out_features >= linear.in_features >= MANY_INPUTS:
        return FewRowsLinear(linear)
    if linear.out_features > linear.in_features:
        in_long_rows = linear.weight.detach().t().contiguous().t()
        linear.weight = nn.Parameter(in_long_rows, requires_grad=False)
    return linear


class FewRowsLinear(nn.Linear):
    """x W^T + b, taken as (W x^T)^T where x has a few rows; a single row is taken twice."""

    def __init__(self, parts: nn.Linear) -> None:
        """Take over the weights of `parts`."""
        super().__init__(parts.in_features, parts.out_features, bias=False, device="meta")
        self.weight, self.bias = parts.weight, parts.bias

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., N) for states (..., D)."""
        num_rows = states.shape[:-1].numel()
        if num_rows > FEW_ROWS:
            return functional.linear(states, self.weight, self.bias)
        rows = states.reshape(num_rows, -1)
        columns = (torch.cat((rows, rows)) if num_rows == 1 else rows).t()
        products = self.weight @ columns  # (N, rows)
        if self.bias is not None:
            products += self.bias[:, None]
        return products[:, :num_rows].t().contiguous().view(*states.shape[:-1], -1)


def concatenate_linears(*maps: nn.Linear) -> nn.Linear:
    """Return one map, without gradients, whose outputs are those of several side by side."""
    weight = torch.cat([part.weight.detach() for part in maps])
    if maps[0].bias is None:
        return frozen_linear(weight, None)
    return frozen_linear(weight, torch.cat([part.bias.detach() for part in maps]))


def frozen_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return the map, without gradients, of a weight (N, D) and a bias (N,)."""
    linear = nn.Linear(weight.shape[1], len(weight), bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
