"""Linear layers whose weights have eight bits, for translation on a CPU.

A quarter of the weights' memory is read, and products of whole numbers are faster. Each row of the
input has its own scale, so the other rows of a batch do not change how it is rounded. The batch
shape does change the last digits of the row itself, though, and rounding to eight bits makes them a
whole unit now and then: near-ties may be decided otherwise.
"""

import torch
from torch import Tensor, nn

# Of the whole numbers that weights and inputs are rounded to.
HIGHEST = 127
# Smaller matrices lose by rounding the input, and the output back, what their product gains.
SMALLEST = 1 << 18


class Int8Linear(nn.Module):
    """x W^T + b with W rounded to eight bits, with a scale for each row of W and for each x."""

    weight: Tensor  # (N, D)
    scales: Tensor  # (N,)
    bias: Tensor | None  # (N,)

    def __init__(self, parts: nn.Linear) -> None:
        """Round the weights of `parts`."""
        super().__init__()
        self.out_features = parts.out_features
        rounded, scales = quantize_rows(parts.weight.detach().float())
        self.register_buffer("weight", rounded)
        self.register_buffer("scales", scales[:, 0])
        self.bias = dict(parts.named_parameters()).get("bias")

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., N) for states (..., D)."""
        rounded, scales = quantize_rows(states.flatten(0, -2))
        products = torch._int_mm(rounded, self.weight.t()).mul(scales).mul_(self.scales)
        if self.bias is not None:
            products += self.bias
        return products.view(*states.shape[:-1], -1)


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return whole numbers (M, D), int8, and what each row is to be multiplied by, (M, 1)."""
    highest = rows.abs().amax(dim=-1, keepdim=True)
    # A row of zeros may have any scale.
    scales = highest.clamp(min=torch.finfo(rows.dtype).tiny) / HIGHEST
    return (rows / scales).round_().to(torch.int8), scales


def quantize_where_faster(linear: nn.Linear) -> nn.Module:
    """Return the same map with weights of eight bits, or as it is where it is small."""
    return Int8Linear(linear) if linear.weight.numel() >= SMALLEST else linear
