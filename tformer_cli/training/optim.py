"""The optimiser and its groups of parameters."""

from typing import Any

import torch
from torch import nn

from tformer_cli.config.schema import AdamConfig, MuonConfig, OptimizerConfig
from tformer_cli.model.seq2seq import Seq2Seq
from tformer_cli.training.muon import Muon


def build_optimizer(config: OptimizerConfig, model: Seq2Seq) -> torch.optim.Optimizer:
    """Return the optimiser of a model's parameters.

    With weight decay norms, biases and embeddings (and an output tied to one) are a group of their
    own that is not decayed. Muon moves the matrices inside the layers.
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        decays = parameter.dim() >= 2 and id(parameter) not in embeddings
        (matrices if decays else others).append(parameter)
    common: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "eps": config.epsilon,
        "fused": True,
    }
    if isinstance(config, AdamConfig):
        return torch.optim.Adam(matrices + others, **common)
    decayed = {"weight_decay": config.weight_decay}
    rest = {"params": others, "weight_decay": 0.0}
    if isinstance(config, MuonConfig):
        inner = [matrix for matrix in matrices if matrix is not model.output.weight]
        outer = [matrix for matrix in matrices if matrix is model.output.weight]
        turned = {"params": inner, "momentum": config.momentum, **decayed}
        return Muon([turned, {"params": outer, **decayed}, rest], **common)
    return torch.optim.AdamW([{"params": matrices, **decayed}, rest], **common)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Let the next step of every group use this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
