"""The optimiser and its groups of parameters."""

from typing import Any

import torch
from torch import nn

from tformer_cli.config.schema.optimizer import AdamConfig, MuonConfig, OptimizerConfig
from tformer_cli.training.muon import Muon

# Its rows are tokens, as those of an embedding are; Muon is for what maps states to states.
OUTPUT_WEIGHT = "output.weight"


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of a model's parameters.

    With weight decay norms, biases and embeddings (and an output tied to one) are a group of their
    own that is not decayed. Muon moves the matrices inside the layers.
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    layers: list[nn.Parameter] = []
    output: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
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
    rest = {"params": others, "weight_decay": 0.0}
    if isinstance(config, MuonConfig):
        turned = {"params": layers, "momentum": config.momentum, **decayed}
        return Muon([turned, {"params": output, **decayed}, rest], **common)
    return torch.optim.AdamW([{"params": layers + output, **decayed}, rest], **common)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Let the next step of every group use this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
