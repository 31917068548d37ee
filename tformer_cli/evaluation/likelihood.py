"""How probable a model finds the references."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from tformer_cli.corpus.batch import Batch
from tformer_cli.decoding.ensemble import log_mean_probabilities
from tformer_cli.device import autocast
from tformer_cli.distributed import ALONE, World
from tformer_cli.model.network import Network


@dataclass(frozen=True, slots=True)
class Likelihood:
    """What a model says of given translations.

    Attributes:
        loss: cross-entropy a target token, not smoothed, in nats.
        accuracy: share of target tokens that the model ranks first, given those before.
        num_tokens: target tokens, `</s>` included.
    """

    loss: float
    accuracy: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(self.loss)


@torch.inference_mode()
def reference_likelihood(
    model: Network,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    precision: torch.dtype,
    others: Sequence[Network] = (),
    world: World = ALONE,
) -> Likelihood:
    """Run a model over references, with dropout off.

    Args:
        model: what is asked.
        batches: the references, the same for every process; each takes its share of them.
        device: where the model is.
        precision: number format of matrix products.
        others: the rest of an ensemble, whose probabilities are averaged with those of `model`.
        world: the processes that work together.
    """
    models = [model.eval(), *(other.eval() for other in others)]
    nll, num_correct, num_tokens = 0.0, 0.0, 0.0
    own = itertools.islice(batches, world.rank, None, world.size)
    for batch in (batch.to(device) for batch in own):
        targets = batch.target_out[batch.target_mask]
        with autocast(device, precision):
            inputs = (batch.source, batch.source_mask, batch.target_in, batch.target_mask)
            answers = [one(*inputs) for one in models]
        logits = log_mean_probabilities(answers)
        nll += functional.cross_entropy(logits.float(), targets, reduction="sum").item()
        num_correct += int((logits.argmax(dim=-1) == targets).sum())
        num_tokens += batch.num_target_tokens
    nll, num_correct, num_tokens = world.sums(nll, num_correct, num_tokens)
    return Likelihood(nll / num_tokens, num_correct / num_tokens, int(num_tokens))
