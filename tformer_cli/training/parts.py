"""The parts of a model: how strongly a step pulls each, and how far it moves."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import get_total_norm


class PartReport(NamedTuple):
    """What one step did to a part.

    Attributes:
        grad_norm: norm of the part's gradient before clipping.
        update_ratio: norm of the weights' change over that of the weights before it. Far below
            1e-4 a part hardly learns, far above 1e-2 it is shaken. None where all were zero.
    """

    grad_norm: float
    update_ratio: float | None


class PartsWatch:
    """Looks at the parts of a model before the optimiser moves it, and again afterwards."""

    def __init__(self, model: nn.Module) -> None:
        """Remember the weights and the gradient of a model as they are."""
        self._parts: dict[str, list[nn.Parameter]] = {}
        for name, weight in model.named_parameters():
            self._parts.setdefault(part_of(name), []).append(weight)
        self._before = {
            part: [weight.detach().clone() for weight in weights]
            for part, weights in self._parts.items()
        }
        self._grad_norms = {
            part: get_total_norm([w.grad for w in weights if w.grad is not None])
            for part, weights in self._parts.items()
        }

    @torch.no_grad()
    def reports(self) -> Mapping[str, PartReport]:
        """Return what has become of each part since then."""
        return {
            part: PartReport(self._grad_norms[part].item(), self._moved(part))
            for part in self._parts
        }

    def _moved(self, part: str) -> float | None:
        before = self._before[part]
        changes = [weight - was for weight, was in zip(self._parts[part], before, strict=True)]
        ratio = (get_total_norm(changes) / get_total_norm(before)).item()
        # JSON has no infinity.
        return ratio if math.isfinite(ratio) else None


def part_of(weight: str) -> str:
    """Return the part that a weight belongs to: a layer, or what stands around the layers.

    `decoder.layers.3.self_attention.query.weight` is in `decoder.layers.3`, `encoder.norm.weight`
    in `encoder.norm`, and a table of embeddings that is shared in the part that names it first.
    """
    module, _, _ = weight.rpartition(".")
    names = module.split(".")
    return ".".join(names[: 3 if "layers" in names else 2])
