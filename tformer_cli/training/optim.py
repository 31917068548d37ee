"""The optimiser and its groups of parameters."""

import torch
from torch import nn

from tformer_cli.config.schema import AdamWConfig, OptimizerConfig


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of a model's parameters.

    With weight decay there are two groups: the matrices of linear layers, which are decayed, and
    norms, biases and embeddings (and an output tied to one), which are not.
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        decays = parameter.dim() >= 2 and id(parameter) not in embeddings
        (matrices if decays else others).append(parameter)
    if isinstance(config, AdamWConfig):
        return torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": config.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
            fused=True,
        )
    return torch.optim.Adam(
        matrices + others,
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Let the next step of every group use this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
