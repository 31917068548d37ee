"""Likelihood: how probable a model finds references, in training and by `tformer eval`."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from tformer_cli.config.schema.text import Text
from tformer_cli.corpus.batch import Batch
from tformer_cli.corpus.bucketing import batches_in_order
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import autocast
from tformer_cli.distributed import SINGLE_PROCESS, World
from tformer_cli.errors import DataError, Problem
from tformer_cli.model.network import Network
from tformer_cli.search.batches import halving_on_oom
from tformer_cli.search.topk import log_mean_probabilities
from tformer_cli.text.special_tokens import BOS_ID

# Padded tokens of a batch, on either side. A longer line has no loss, which would take minutes.
LIKELIHOOD_BATCH_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How probable a model finds the references (teacher forcing).

    Attributes:
        loss: cross-entropy in nats per target token, without label smoothing.
        accuracy: share of the target tokens that have the highest probability.
        num_tokens: target tokens, EOS included.
    """

    loss: float
    accuracy: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return perplexity(self.loss)


@torch.inference_mode()
def reference_likelihood(
    models: Sequence[Network],
    batches: Iterable[Batch],
    *,
    device: torch.device,
    precision: torch.dtype,
    world: World = SINGLE_PROCESS,
) -> Likelihood:
    """Return the likelihood of references, without dropout.

    The probabilities of an ensemble are averaged. The processes of `world` have the same batches
    and share them.
    """
    for model in models:
        model.eval()
    nll, num_correct, num_tokens = 0.0, 0.0, 0.0
    for batch in itertools.islice(batches, world.rank, None, world.size):
        sums = partial(_nll_sums, models, batch, device=device, precision=precision)
        rows = list(range(len(batch.source)))
        for _, (part_nll, part_correct) in halving_on_oom(sums, [rows], device):
            nll += part_nll
            num_correct += part_correct
        num_tokens += batch.num_target_tokens
    nll, num_correct, num_tokens = world.all_reduce_sum(nll, num_correct, num_tokens)
    return Likelihood(nll / num_tokens, num_correct / num_tokens, int(num_tokens))


def _nll_sums(
    models: Sequence[Network],
    batch: Batch,
    rows: list[int],
    *,
    device: torch.device,
    precision: torch.dtype,
) -> list[float]:
    """Return the summed cross-entropy and the correct tokens of some rows of a batch."""
    part = batch.select(rows).to(device)
    inputs = part.source, part.source_mask, part.target_in, part.target_positions
    with autocast(device, precision):
        answers = [model(*inputs) for model in models]
    logits = log_mean_probabilities(answers)
    nll = functional.cross_entropy(logits.float(), part.targets, reduction="sum")
    num_correct = (logits.argmax(dim=-1) == part.targets).sum()
    # One synchronization with the device per batch.
    return torch.stack((nll, num_correct)).tolist()


def perplexity(loss: float) -> float:
    """Return exp(loss), capped at exp(700): floats end soon after it."""
    return math.exp(min(loss, 700.0))


def loss_batches(store: TokenStore, *, start_id: int = BOS_ID) -> Iterator[Batch]:
    """Yield every example once, except those of more than `LIKELIHOOD_BATCH_TOKENS` tokens."""
    for batch in batches_in_order(store, batch_tokens=LIKELIHOOD_BATCH_TOKENS, start_id=start_id):
        if max(batch.source.shape[1], batch.target_in.shape[1]) <= LIKELIHOOD_BATCH_TOKENS:
            yield batch


def long_lines_warning(text: Text, store: TokenStore) -> Problem | None:
    """Return a warning of lines that `loss_batches` leaves out, if any; refuse a text of them."""
    files = ", ".join(map(str, text.files.values()))
    lengths = np.maximum(store.source_lengths, store.target_lengths)
    num_long = int((lengths >= LIKELIHOOD_BATCH_TOKENS).sum())
    long = f"{LIKELIHOOD_BATCH_TOKENS} tokens or more"
    if num_long == len(store):
        what = f"every line has {long}; nothing is left for the loss"
        raise DataError(files, what, remedy="split the lines")
    if num_long == 0:
        return None
    return Problem(
        files, f"lines of {long} are left out of the loss", f"{num_long} of {len(store)}"
    )
