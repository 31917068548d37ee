"""Linear layers whose weights lie as oneDNN reads them, for translation on a CPU.

A product of a few rows then takes as long as reading the weights does, which is two to three times
as fast as torch's own, and one of many rows a tenth less than that.
"""

import torch
from torch import Tensor, nn

from tformer_cli.device import has_bfloat16_matmul, prefers_onednn

# Smaller matrices lose by the call what their product gains.
SMALLEST = 1 << 17
# A single row takes longer than so many.
FEW_ROWS = 4


class PackedLinear(nn.Module):
    """x W^T + b, with the weights of W in blocks."""

    bias: Tensor | None  # (N,)

    def __init__(self, parts: nn.Linear) -> None:
        """Lay out the weights of `parts`, which it does not keep."""
        super().__init__()
        self.out_features = parts.out_features
        self.bias = dict(parts.named_parameters()).get("bias")
        weight = parts.weight.detach().contiguous()
        self.dtype = weight.dtype
        self.blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., N) for states (..., D)."""
        rows = states.to(self.dtype)
        if states.shape[:-1].numel() > 1:
            return self._product(rows)
        few = rows.expand(*states.shape[:-2], FEW_ROWS, -1)
        return self._product(few).narrow(-2, 0, 1)

    def _product(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            rows, self.blocks, self.bias, "none", [], ""
        )
        return product


def pack_where_faster(linear: nn.Linear) -> nn.Module:
    """Return the same map with packed weights, or as it is where that is as fast."""
    weight = linear.weight
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return linear
    if weight.dtype == torch.bfloat16 and has_bfloat16_matmul():
        return PackedLinear(linear)
    if weight.dtype == torch.float32 and prefers_onednn() and weight.numel() >= SMALLEST:
        return PackedLinear(linear)
    return linear
