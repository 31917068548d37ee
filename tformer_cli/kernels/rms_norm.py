"""RMSNorm (Zhang and Sennrich 2019), with a faster gradient on a CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + epsilon) times `weight` (D,), for x (..., D) (section 4)."""
    is_trained = torch.is_grad_enabled() and hidden_states.requires_grad | weight.requires_grad
    # Lower precision would lose digits in the root, which torch computes in float32.
    if is_trained and hidden_states.device.type == "cpu" and weight.dtype.itemsize >= 4:
        normalized: Tensor = _CpuRmsNorm.apply(hidden_states, weight, epsilon)  # type: ignore[no-untyped-call]
        return normalized
    return functional.rms_norm(hidden_states, weight.shape, weight, epsilon)


class _CpuRmsNorm(torch.autograd.Function):
    # On a CPU torch has a kernel of LayerNorm and none of RMSNorm, whose gradient takes several
    # times as long.
    @staticmethod
    def forward(ctx: Any, hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        norms = torch.linalg.vector_norm(hidden_states, dim=-1, keepdim=True)
        scales = norms.square_().div_(hidden_states.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(hidden_states, weight, scales)
        normalized: Tensor = (hidden_states * scales).mul_(weight)
        return normalized

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden_states, weight, scales = ctx.saved_tensors
        (gradient,) = gradients
        # LayerNorm whose mean is said to be zero, except that the gradient of the mean is in it.
        of_states, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            gradient,
            hidden_states,
            weight.shape,
            torch.zeros_like(scales),
            scales,
            weight,
            None,
            [True, True, False],
        )
        of_mean = (gradient @ weight).unsqueeze(-1).mul_(scales).div_(weight.numel())
        return of_states.add_(of_mean), of_weight, None
