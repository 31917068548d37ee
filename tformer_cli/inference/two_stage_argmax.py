"""Argmax of the logits by bfloat16, verified in float32.

On a processor that multiplies bfloat16 in half the time, rough logits say which few tokens, mostly
one, may be the best despite rounding. Only the logits of these are computed in float32, so the
result is the argmax of float32: safe screening (El Ghaoui et al. 2012) for a maximum.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.device import has_bfloat16_matmul
from tformer_cli.inference.linear import frozen_linear, pack_where_faster
from tformer_cli.search.topk import GROUP

# A product of fewer rows waits for the weights, not for the multiplications.
MIN_ROWS = 32
# A number rounded to bfloat16, which has 8 significant bits, is off by at most 2^-8 of it, and the
# product of two such numbers by 2^-7. What is left of that, 2^-16, and the rounding of float32 in
# sums of up to 6,000 products, are less than a tenth of it.
ROUNDING = 1.1 * 2**-7


class TwoStageArgmax:
    """The argmax of an output projection's logits, in two stages."""

    def __init__(self, output: nn.Linear) -> None:
        """Round the weights, so that processes that are forked later share them."""
        self.weight = output.weight.detach()
        self.vocab_size = len(self.weight)
        bias = dict(output.named_parameters()).get("bias")
        self.bias = output.weight.new_zeros(self.vocab_size) if bias is None else bias.detach()
        # Padded with impossible tokens to a multiple of the group size.
        missing = -self.vocab_size % GROUP
        weight = functional.pad(self.weight.bfloat16(), (0, 0, 0, missing))
        offsets = functional.pad(self.bias.bfloat16(), (0, missing), value=-math.inf)
        self._rough = pack_where_faster(frozen_linear(weight, offsets))
        # Norm of the longest row of weights with its bias.
        norms = torch.linalg.vector_norm(self.weight, dim=1)
        self._max_norm = float(torch.hypot(norms, self.bias).max())

    def best(self, hidden_states: Tensor, suppress: Callable[[Tensor], object]) -> Tensor:
        """Return the token with the highest logit (B, K) for hidden states (B, K, D).

        Of equals it is the first. `suppress` sets the logits (B, K, V) of impossible tokens to
        -inf, in place.
        """
        rough: Tensor = self._rough(hidden_states.bfloat16())
        suppress(rough[..., : self.vocab_size])
        states = hidden_states.flatten(0, 1)
        rows, tokens = self._candidates(states, rough.flatten(0, 1))
        logits = (states[rows] * self.weight[tokens]).sum(dim=-1) + self.bias[tokens]
        highest = logits.new_full((len(states),), -math.inf).scatter_reduce(0, rows, logits, "amax")
        # "Not less than the highest" includes NaN, which may be all there is.
        is_best = ~(logits < highest[rows])
        best = tokens.new_full((len(states),), self.vocab_size)
        best.scatter_reduce_(0, rows[is_best], tokens[is_best], "amin")
        return best.view(hidden_states.shape[:2])

    def _candidates(self, states: Tensor, rough: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows and the tokens, (n,) both, of the logits that may be the highest.

        States are (N, D), rough logits (N, V'), where V' is a multiple of the group size. By
        Cauchy-Schwarz the rounding error of a logit x w is at most a fraction of |x| |w|. So no
        token is best whose rough logit is below the highest one by twice that much.
        """
        # Group g has the tokens g, g + G, and so on: all maxima are computed side by side.
        groups = rough.view(len(rough), GROUP, -1)
        maxima = groups.amax(dim=1).float()
        highest = maxima.amax(dim=1)
        norms = (states.float().square().sum(dim=1) + 1).sqrt() * self._max_norm
        least = highest - ROUNDING * (2 * norms + highest.abs())
        rows, columns = (~(maxima < least[:, None])).nonzero(as_tuple=True)
        members = groups[rows, :, columns]  # (n, GROUP)
        tokens = columns[:, None] + torch.arange(GROUP, device=rows.device) * groups.shape[2]
        is_near = ~(members < least[rows, None]) & (tokens < self.vocab_size)
        return rows[:, None].expand_as(tokens)[is_near], tokens[is_near]


def two_stage_argmax(
    output: nn.Linear, device: torch.device, precision: torch.dtype
) -> TwoStageArgmax | None:
    """Return the argmax in two stages where it is faster, and None elsewhere."""
    is_faster = precision == torch.float32 and device.type == "cpu" and has_bfloat16_matmul()
    return TwoStageArgmax(output) if is_faster else None
