"""How gradients move the weights: `training.optimizer`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tformer_cli.config.schema.limits import Bounds, PositiveFloat, Probability


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamWConfig:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"
    """Adam with decoupled weight decay; norms, biases and embeddings are not decayed."""
    learning_rate: PositiveFloat = 1e-3
    """Highest learning rate, reached at the end of the warm-up."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the two moments."""
    epsilon: PositiveFloat = 1e-9
    """Added to the denominator."""
    weight_decay: Annotated[float, Bounds(minimum=0)] = 0.01
    """Share of a weight, times the learning rate, that each step takes away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamConfig:
    """Adam (Kingma and Ba 2015)."""

    kind: Literal["adam"] = "adam"
    """Adam without weight decay."""
    learning_rate: PositiveFloat = 1e-3
    """Highest learning rate, reached at the end of the warm-up."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the two moments."""
    epsilon: PositiveFloat = 1e-9
    """Added to the denominator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MuonConfig:
    """Muon (Jordan et al. 2024) for the matrices of layers, AdamW for everything else."""

    kind: Literal["muon"] = "muon"
    """Momentum made orthogonal for the matrices of layers, AdamW for everything else."""
    learning_rate: PositiveFloat = 1e-3
    """Highest learning rate, reached at the end of the warm-up; AdamW's is a good one."""
    momentum: Probability = 0.95
    """Decay rate of the momentum of matrices."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the two moments of everything else."""
    epsilon: PositiveFloat = 1e-9
    """Added to the denominator, of everything else."""
    weight_decay: Annotated[float, Bounds(minimum=0)] = 0.01
    """Share of a matrix, times the learning rate, that each step takes away."""


OptimizerConfig = AdamWConfig | AdamConfig | MuonConfig
