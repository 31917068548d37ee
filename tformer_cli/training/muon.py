"""Muon: momentum for matrices, made orthogonal, beside AdamW for everything else."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Of an odd polynomial whose repeated use takes every number in (0, 1] near 1 (Jordan et al. 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
# Root mean square of a usual update of Adam (Liu et al. 2025, section 2.2).
ADAM_RMS = 0.2


class Muon(torch.optim.AdamW):
    """Moves matrices by orthogonal updates (Jordan et al. 2024), the rest as AdamW does.

    A group of parameters with a `momentum` holds matrices. Their update is scaled to the size that
    AdamW's would have (Liu et al. 2025, equation 4), so one learning rate serves both.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move all parameters; the gradients of matrices are used up."""
        for group in self.param_groups:
            if "momentum" in group:
                self._move_matrices(group)
        # What has no gradient any more is left alone here.
        return super().step(closure)  # type: ignore[no-any-return]

    def _move_matrices(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in group["params"]:
            if weight.grad is not None:
                by_shape.setdefault(weight.shape, []).append(weight)
        for shape, weights in by_shape.items():
            size = ADAM_RMS * math.sqrt(max(shape))
            update = orthogonal(self._momentum(weights, group["momentum"])) * size
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, update.unbind(), alpha=-group["lr"])

    def _momentum(self, weights: list[Tensor], momentum: float) -> Tensor:
        """Return Nesterov's momentum of some matrices side by side, and use up their gradients."""
        averages, ahead = [], []
        for weight in weights:
            gradient, weight.grad = weight.grad, None
            assert gradient is not None
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            averages.append(state["momentum"].lerp_(gradient, 1 - momentum))
            ahead.append(gradient)
        return torch.stack(ahead).lerp_(torch.stack(averages), momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices of the same singular vectors, whose singular values are all near 1.

    A polynomial of a matrix is one of its singular values, and takes no decomposition.

    Args:
        matrices: (n, A, B).
    """
    first, third, fifth = COEFFICIENTS
    # bfloat16 does on a GPU; a CPU is not faster in it.
    near = matrices.bfloat16() if matrices.device.type == "cuda" else matrices
    is_tall = near.shape[1] > near.shape[2]
    if is_tall:
        near = near.mT
    near = near / near.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(NUM_ITERATIONS):
        square = near @ near.mT
        factor = torch.baddbmm(square, square, square, beta=third, alpha=fifth)
        near = torch.baddbmm(near, factor, near, beta=first)
    return (near.mT if is_tall else near).to(matrices.dtype)
