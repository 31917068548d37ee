"""How probable a model finds the references."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from tformer_cli.corpus.batch import Batch
from tformer_cli.device import autocast
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.model.network import Network
from tformer_cli.search.scoring import halving_on_oom
from tformer_cli.search.topk import log_mean_probabilities


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
        return perplexity(self.loss)


def perplexity(loss: float) -> float:
    """Return exp(loss); of a loss above 700, whose exponential soon is beyond floats, exp(700)."""
    return math.exp(min(loss, 700.0))


@torch.inference_mode()
def reference_likelihood(
    model: Network,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    precision: torch.dtype,
    others: Sequence[Network] = (),
    world: World = SINGLE_PROCESS,
) -> Likelihood:
    """Run a model over references, with dropout off.

    Args:
        model: what is asked.
        batches: the references, the same for every process; each takes its share of them.
        device: where the model is.
        precision: number format of matrix products.
        others: the rest of an ensemble, whose probabilities are averaged with those of `model`.
        world: the processes that work together.

    Raises:
        DeviceError: memory has no room for a single sentence.
    """
    models = [model.eval(), *(other.eval() for other in others)]
    nll, num_correct, num_tokens = 0.0, 0.0, 0.0
    for batch in itertools.islice(batches, world.rank, None, world.size):
        judge = partial(_judged, models, batch.to(device), device=device, precision=precision)
        rows = list(range(len(batch.source)))
        for _, (part_nll, part_correct) in halving_on_oom(judge, [rows], device):
            nll += part_nll
            num_correct += part_correct
        num_tokens += batch.num_target_tokens
    nll, num_correct, num_tokens = world.all_reduce_sum(nll, num_correct, num_tokens)
    return Likelihood(nll / num_tokens, num_correct / num_tokens, int(num_tokens))


def _judged(
    models: Sequence[Network],
    batch: Batch,
    rows: list[int],
    *,
    device: torch.device,
    precision: torch.dtype,
) -> tuple[float, int]:
    """Return the cross-entropy of some rows of a batch, and the tokens ranked first, as sums."""
    target_mask = batch.target_mask[rows]
    targets = batch.target_out[rows][target_mask]
    inputs = batch.source[rows], batch.source_mask[rows], batch.target_in[rows], target_mask
    with autocast(device, precision):
        answers = [one(*inputs) for one in models]
    logits = log_mean_probabilities(answers)
    nll = functional.cross_entropy(logits.float(), targets, reduction="sum").item()
    return nll, int((logits.argmax(dim=-1) == targets).sum())
