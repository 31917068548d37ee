"""The best next tokens of each row, without sorting the vocabulary."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.search.rows import Sequences
from tformer_cli.search.rules import LogitsProcessor

# Tokens in each of the groups that a vocabulary is cut into.
GROUP = 24
# With fewer rows the steps in between cost more than they save.
FEW_ROWS = 8
# So many rows' logits stay in the cache of one core between two passes over them.
ROWS_AT_ONCE = 32
# Powers of two take torch a third of the time that those of e take on a CPU.
BITS = math.log2(math.e)
# The logarithm of the largest float32 is 88.
FAR = 60.0


class TopK(NamedTuple):
    """The best next tokens of each row, best first; each member is (B, K, n).

    Attributes:
        tokens: their ids.
        scores: what a search ranks them by.
        log_probs: natural logarithms of their probabilities.
    """

    tokens: Tensor
    scores: Tensor
    log_probs: Tensor


def offer(logits: Tensor, rules: LogitsProcessor, rows: Sequences, count: int) -> TopK:
    """Return the `count` best next tokens of each row, or all where the vocabulary is smaller.

    Args:
        logits: (B, K, V), in which nothing impossible is left.
        rules: what changes their ranks.
        rows: what is written.
        count: n.
    """
    scores, log_probs, norms = ranked(logits, rules, rows)
    values, tokens = topk_tokens(scores.flatten(0, 1), count)
    shape = (*scores.shape[:2], -1)
    found = tokens.view(shape)
    off = norms[..., None]
    return TopK(found, values.view(shape) - off, log_probs.gather(-1, found) - off)


def ranked(
    logits: Tensor, rules: LogitsProcessor, rows: Sequences
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what all next tokens are ranked by, and how probable they are.

    Returns:
        Scores and log probabilities (B, K, V), and what is to be taken off both of them, (B, K):
        without rules it is cheaper to do that for a few than for all.
    """
    if not rules.has_effect:
        return logits, logits, logsumexp(logits)
    log_probs = log_softmax(logits)
    return rules.apply(log_probs, rows), log_probs, log_probs.new_zeros(logits.shape[:-1])


def log_softmax(logits: Tensor) -> Tensor:
    """Return log probabilities (..., V) in float32, or in float64 where the logits are."""
    return _wide(logits) - logsumexp(logits)[..., None]


def logsumexp(logits: Tensor) -> Tensor:
    """Return the logarithm (...) of what exp(logits) (..., V) add up to."""
    if logits.device.type != "cpu":
        return _wide(logits).logsumexp(dim=-1)
    parts = torch.split(logits.flatten(0, -2), ROWS_AT_ONCE)
    norms = torch.cat([(_wide(part) * BITS).exp2_().sum(dim=-1) for part in parts]).log()
    # Where sums stay away from the ends of float32 the highest logit need not be looked for.
    is_far = ~(norms.abs() < FAR)
    if bool(is_far.any()):
        exact = torch.cat([_wide(part).logsumexp(dim=-1) for part in parts])
        norms = exact.where(is_far, norms)
    return norms.view(logits.shape[:-1])


def topk_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest scores of each row, highest first, and their tokens.

    Args:
        scores: (N, V).
        count: how many; all where the vocabulary is smaller.

    Returns:
        Scores and tokens, each (N, count).
    """
    if len(scores) < FEW_ROWS:
        if count == 1:
            value, token = scores.max(dim=-1, keepdim=True)
            return value, token
        best = scores.topk(min(count, scores.shape[1]), dim=-1)
        return best.values, best.indices
    nothing = scores.new_zeros((len(scores), 1))
    _, tokens = topk_continuations(scores[:, None], nothing, nothing, count)
    return scores.gather(1, tokens), tokens


def topk_continuations(
    logits: Tensor, norms: Tensor, totals: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return where the `count` highest of totals + (logits - norms) are, highest first.

    A token among the best lies in one of the `count` groups with the best maxima, so only those
    are sorted.

    Args:
        logits: (B, K, V).
        norms: (B, K) of each row.
        totals: (B, K) of each row.
        count: how many of each place; all where it has fewer.

    Returns:
        Sequences and tokens, each (B, count).
    """
    num_slots, num_beams, vocab_size = logits.shape
    num_groups = vocab_size // GROUP
    if num_groups <= 2 * count or num_slots * num_beams < FEW_ROWS:
        everything = (totals[:, :, None] + (logits - norms[:, :, None])).flatten(1)
        best = everything.topk(min(count, everything.shape[1]), dim=-1).indices
        return best // vocab_size, best % vocab_size
    device = logits.device
    whole = num_groups * GROUP
    # Group g has the tokens g, g + num_groups, and so on: all maxima grow side by side.
    grouped = logits[:, :, :whole].view(num_slots, num_beams, GROUP, num_groups)
    maxima = totals[:, :, None] + (grouped.amax(dim=2) - norms[:, :, None])
    groups = maxima.flatten(1).topk(count, dim=-1, sorted=False).indices
    first = groups // num_groups * vocab_size + groups % num_groups  # (B, count)
    members = first[:, :, None] + torch.arange(0, whole, num_groups, device=device)
    rest = torch.arange(whole, vocab_size, device=device)
    rest = torch.arange(num_beams, device=device)[:, None] * vocab_size + rest
    places = torch.cat((members.flatten(1), rest.flatten().expand(num_slots, -1)), dim=1)
    rows = places // vocab_size
    narrow = totals.gather(1, rows) + (logits.flatten(1).gather(1, places) - norms.gather(1, rows))
    best = places.gather(1, narrow.topk(count, dim=-1).indices)
    return best // vocab_size, best % vocab_size


def _wide(logits: Tensor) -> Tensor:
    """Return the same in float32, or in float64 where it is that."""
    return logits if logits.dtype == torch.float64 else logits.float()
