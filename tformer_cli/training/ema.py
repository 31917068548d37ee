"""The exponential moving average of the weights."""

import copy

import torch

from tformer_cli.model.network import Network


class MovingAverage:
    """Exponential moving average (EMA) of the weights (Polyak and Juditsky 1992).

    After step t the average a of a weight w is d * a + (1 - d) * w, where d is the decay or, early
    on, (1 + t) / (10 + t), so that the initial weights soon count for nothing. The average is a
    function of the steps alone: only its weights, those of `model`, are saved.
    """

    def __init__(self, model: Network, decay: float) -> None:
        self.model = copy.deepcopy(model)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: Network, step: int) -> None:
        """Move the average toward the model after `step`, counted from 1."""
        share = 1.0 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), share)
