"""Several linear maps of the same states as one product."""

import torch
from torch import nn


def side_by_side(*maps: nn.Linear) -> nn.Linear:
    """Return one map, without gradients, whose outputs are those of several side by side."""
    weight = torch.cat([part.weight.detach() for part in maps])
    fused = nn.Linear(weight.shape[1], len(weight), bias=maps[0].bias is not None, device="meta")
    fused.weight = nn.Parameter(weight, requires_grad=False)
    if maps[0].bias is not None:
        bias = torch.cat([part.bias.detach() for part in maps])
        fused.bias = nn.Parameter(bias, requires_grad=False)
    return fused
