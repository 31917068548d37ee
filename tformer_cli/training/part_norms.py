"""Gradient norms and update ratios by part of the model, for each report of a training."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from tformer_cli.storage.atomic import json_number


class PartReport(NamedTuple):
    """What one step did to a part of the model."""

    grad_norm: float  # before clipping
    # Norm of the change of the weights over their norm before it. Far below 1e-4 a part hardly
    # learns; far above 1e-2 it is unstable. None if all were zero.
    update_ratio: float | None


def watch_parts(model: nn.Module, grad_norms: Tensor) -> Callable[[], dict[str, PartReport]]:
    """Return a function that reports, after an optimizer step, what it did to each part.

    `grad_norms` (P,) are those of the P weights that are not frozen.
    """
    parts: dict[str, list[nn.Parameter]] = {}
    norms: dict[str, list[float]] = {}
    trained = [item for item in model.named_parameters() if item[1].requires_grad]
    for (name, weight), norm in zip(trained, grad_norms.tolist(), strict=True):
        parts.setdefault(part_of(name), []).append(weight)
        norms.setdefault(part_of(name), []).append(norm)
    before = {part: [w.detach().clone() for w in weights] for part, weights in parts.items()}

    @torch.no_grad()
    def reports() -> dict[str, PartReport]:
        result = {}
        for part, weights in parts.items():
            changes = [w - old for w, old in zip(weights, before[part], strict=True)]
            ratio = (get_total_norm(changes) / get_total_norm(before[part])).item()
            result[part] = PartReport(math.hypot(*norms[part]), json_number(ratio))
        return result

    return reports


def part_of(weight: str) -> str:
    """Return the part of the model that a weight belongs to: a layer, or a module beside them.

    `decoder.layers.3.self_attention.query.weight` is in `decoder.layers.3`, `encoder.norm.weight`
    in `encoder.norm`, and a shared embedding in the part that names it first.
    """
    module, _, _ = weight.rpartition(".")
    names = module.split(".")
    return ".".join(names[: 3 if "layers" in names else 2])
