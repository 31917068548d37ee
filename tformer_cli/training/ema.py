"""A moving average of the weights, which often translates better than the weights themselves."""

import copy

import torch

from tformer_cli.model.network import Network


class MovingAverage:
    """Follows a model at a distance (Polyak and Juditsky 1992).

    After step t the average a of a weight w becomes `d * a + (1 - d) * w`, where d is the decay or,
    early on, (1 + t) / (10 + t), so that the random first weights are soon forgotten. What it
    holds is a function of the steps alone, and the average all there is to save.

    Attributes:
        model: a copy of the model with the averaged weights.
    """

    def __init__(self, model: Network, decay: float) -> None:
        self.model = copy.deepcopy(model)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: Network, step: int) -> None:
        """Move the average towards the model as it is after `step`, counted from 1."""
        share = 1.0 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), share)
