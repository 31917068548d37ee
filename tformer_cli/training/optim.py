"""Optimizers: Adam, AdamW, and Muon for the matrices inside layers."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.training import AdamConfig, MuonConfig, OptimizerConfig

# Its rows are tokens, as those of an embedding are; Muon is for maps between hidden states.
OUTPUT_WEIGHT = "output.weight"
# Odd polynomial whose iteration takes every singular value in (0, 1] near 1 (Jordan et al. 2024).
NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
# Root mean square of a usual update of Adam (Liu et al. 2025, section 2.2).
ADAM_RMS = 0.2


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a model's parameters, without those that are frozen.

    Norms, biases and embeddings (and an output tied to one) form a group without weight decay. Muon
    moves the matrices inside the layers.
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    layers: list[nn.Parameter] = []
    output: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dim() < 2 or id(parameter) in embeddings:
            others.append(parameter)
        elif name == OUTPUT_WEIGHT:
            output.append(parameter)
        else:
            layers.append(parameter)
    common: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "eps": config.epsilon,
        "fused": True,
    }
    if isinstance(config, AdamConfig):
        return torch.optim.Adam(layers + output + others, **common)
    decayed = {"weight_decay": config.weight_decay}
    undecayed = {"params": others, "weight_decay": 0.0}
    if isinstance(config, MuonConfig):
        matrices = {"params": layers, "momentum": config.momentum, **decayed}
        return Muon([matrices, {"params": output, **decayed}, undecayed], **common)
    return torch.optim.AdamW([{"params": layers + output, **decayed}, undecayed], **common)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


class Muon(torch.optim.AdamW):
    """Orthogonalized momentum for matrices (Jordan et al. 2024), AdamW for the rest.

    A parameter group with a `momentum` holds matrices. Their update is scaled to the size of
    AdamW's (Liu et al. 2025, equation 4), so one learning rate serves both.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move all parameters; the gradients of matrices are used up."""
        for group in self.param_groups:
            if "momentum" in group:
                self._move_matrices(group)
        # AdamW skips parameters without a gradient.
        return super().step(closure)  # type: ignore[no-any-return]

    def _move_matrices(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in group["params"]:
            if weight.grad is not None:
                by_shape.setdefault(weight.shape, []).append(weight)
        for shape, weights in by_shape.items():
            size = ADAM_RMS * math.sqrt(max(shape))
            update = orthogonalize(self._momentum(weights, group["momentum"])) * size
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, update.unbind(), alpha=-group["lr"])

    def _momentum(self, weights: list[Tensor], momentum: float) -> Tensor:
        """Return Nesterov's momentum (n, A, B) of n matrices, and remove their gradients."""
        averages, gradients = [], []
        for weight in weights:
            gradient, weight.grad = weight.grad, None
            assert gradient is not None
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            averages.append(state["momentum"].lerp_(gradient, 1 - momentum))
            gradients.append(gradient)
        return torch.stack(gradients).lerp_(torch.stack(averages), momentum)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return matrices (n, A, B) of the same singular vectors with singular values near 1.

    Newton-Schulz iteration: a polynomial of a matrix is one of its singular values.
    """
    first, third, fifth = NEWTON_SCHULZ_COEFFICIENTS
    # A CPU is not faster in bfloat16.
    near = matrices.bfloat16() if matrices.device.type == "cuda" else matrices
    is_tall = near.shape[1] > near.shape[2]
    if is_tall:
        near = near.mT
    near = near / near.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = near @ near.mT
        factor = torch.baddbmm(square, square, square, beta=third, alpha=fifth)
        near = torch.baddbmm(near, factor, near, beta=first)
    return (near.mT if is_tall else near).to(matrices.dtype)
