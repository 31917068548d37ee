"""Consistency training: two passes over a batch, whose predictions are drawn to each other.

Both passes are one batch of twice the rows. What they draw comes from the generator that dropout
comes from, so it is a function of the seed, the step and the process.
"""

import torch
from torch import Tensor

from tformer_cli.config.schema.training import ConsistencyConfig, RDropConfig, SimCutConfig
from tformer_cli.corpus.batch import Batch
from tformer_cli.model.blocks.embeddings import KeptTokens
from tformer_cli.model.network import Network
from tformer_cli.text.vocabulary import EOS_ID
from tformer_cli.training.loss import LossSums, Objective, consistency_sum


def consistency_loss(
    model: Network, batch: Batch, config: ConsistencyConfig, smoothing: float, factor: float
) -> LossSums:
    """Return the sums of two passes over a batch; other arguments as for `smoothed_nll_sum`."""
    kept = cut_tokens(batch, config.cutoff) if isinstance(config, SimCutConfig) else None
    hidden_states = paired_hidden_states(model, batch, kept)
    return consistency_sum(
        hidden_states, model.output, batch.targets, smoothing, objective_of(config), factor
    )


def objective_of(config: ConsistencyConfig) -> Objective:
    """Return the weights of a consistency loss.

    Those of R-Drop are half of the paper's (equation 4), which sums two cross-entropies: a gradient
    then has the size of that of a single pass.
    """
    match config:
        case SimCutConfig(weight=weight):
            return Objective(cross_entropies=(1.0, 0.0), divergences=(weight, 0.0))
        case RDropConfig(weight=weight):
            return Objective(cross_entropies=(0.5, 0.5), divergences=(weight / 4, weight / 4))


def paired_hidden_states(model: Network, batch: Batch, kept: KeptTokens | None = None) -> Tensor:
    """Return hidden states (2N, D) of a batch (B, ...) that passes twice, (2B, ...) at once."""
    positions = batch.target_positions
    return model.hidden_states(
        batch.source.repeat(2, 1),
        batch.source_mask.repeat(2, 1),
        batch.target_in.repeat(2, 1),
        torch.cat((positions, positions + batch.target_mask.numel())),
        kept,
    )


def cut_tokens(batch: Batch, cutoff: float) -> KeptTokens:
    """Return which tokens keep their embedding: all in the first pass, not so in the second.

    Each token is cut with the probability `cutoff` (Shen et al. 2020, token cutoff), except for the
    EOS of a source and the start of a target.
    """
    source, target = (
        torch.rand(ids.shape, device=ids.device) >= cutoff
        for ids in (batch.source, batch.target_in)
    )
    source |= batch.source == EOS_ID
    target[:, 0] = True
    return KeptTokens(*(torch.cat((torch.ones_like(kept), kept)) for kept in (source, target)))
