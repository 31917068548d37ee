"""The best of all next tokens, without computing every logit in float32.

Where a processor multiplies bfloat16 in half the time, rough logits say which few tokens rounding
leaves in doubt, mostly one, and those alone are computed again. What is found is the best token of
float32, not of bfloat16: safe screening (El Ghaoui et al. 2012), for a maximum.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.inference.pack import pack_where_faster
from tformer_cli.model.blocks.linear import frozen_linear
from tformer_cli.search.topk import GROUP

# A product of fewer rows waits for the weights rather than for the multiplications.
MIN_ROWS = 32
# The product of two numbers rounded to bfloat16 is off by at most 2^-8 of it, and what is rounded
# once by half as much. Two roundings at once, and those of float32 in sums of up to 6,000 products,
# are less than a tenth of that.
ROUNDING = 1.1 * 2**-8


class TwoStageArgmax:
    """The map from states to logits, twice: as it is, and in bfloat16."""

    def __init__(self, output: nn.Linear) -> None:
        """Take a map, which has V outputs.

        Its weights are rounded at once, so that processes that begin later share them.
        """
        self.weight = output.weight.detach()
        self.vocab_size = len(self.weight)
        bias = dict(output.named_parameters()).get("bias")
        self.bias = output.weight.new_zeros(self.vocab_size) if bias is None else bias.detach()
        # With tokens that never come up to a multiple of groups.
        missing = -self.vocab_size % GROUP
        weight = functional.pad(self.weight.bfloat16(), (0, 0, 0, missing))
        offsets = functional.pad(self.bias.bfloat16(), (0, missing), value=-math.inf)
        self._rough = pack_where_faster(frozen_linear(weight, offsets))
        # Length of the longest row of weights with its bias.
        lengths = torch.linalg.vector_norm(self.weight, dim=1)
        self._longest = float(torch.hypot(lengths, self.bias).max())

    def best(self, states: Tensor, forbid: Callable[[Tensor], object]) -> Tensor:
        """Return the token with the highest logit for each state; of equals, the first.

        Args:
            states: (B, K, D).
            forbid: makes impossible, in place, what is out of the question in logits (B, K, V).

        Returns:
            (B, K).
        """
        rough: Tensor = self._rough(states.bfloat16())
        forbid(rough[..., : self.vocab_size])
        flat = states.flatten(0, 1)
        rows, tokens = self._in_doubt(flat, rough.flatten(0, 1))
        logits = (flat[rows] * self.weight[tokens]).sum(dim=-1) + self.bias[tokens]
        highest = logits.new_full((len(flat),), -math.inf).scatter_reduce(0, rows, logits, "amax")
        # Not less than the highest is NaN too, of which there may be nothing else.
        is_best = ~(logits < highest[rows])
        best = tokens.new_full((len(flat),), self.vocab_size)
        best.scatter_reduce_(0, rows[is_best], tokens[is_best], "amin")
        return best.view(states.shape[:2])

    def _in_doubt(self, states: Tensor, rough: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows and the tokens, (n,) both, of the logits that may be the highest.

        By Cauchy and Schwarz the roundings of a logit x w are at most a share of |x| |w|. So no
        token is best that is below the best rough one by twice that much.

        Args:
            states: (N, D).
            rough: (N, V'), with V' a multiple of the group.
        """
        # Group g has the tokens g, g + G, and so on: all maxima grow side by side.
        groups = rough.view(len(rough), GROUP, -1)
        maxima = groups.amax(dim=1).float()
        highest = maxima.amax(dim=1)
        lengths = (states.float().square().sum(dim=1) + 1).sqrt() * self._longest
        least = highest - ROUNDING * (2 * lengths + highest.abs())
        rows, columns = (~(maxima < least[:, None])).nonzero(as_tuple=True)
        members = groups[rows, :, columns]  # (n, GROUP)
        tokens = columns[:, None] + torch.arange(GROUP, device=rows.device) * groups.shape[2]
        near = ~(members < least[rows, None]) & (tokens < self.vocab_size)
        return rows[:, None].expand_as(tokens)[near], tokens[near]
