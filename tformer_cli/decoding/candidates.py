"""The best next tokens of each row, without sorting the vocabulary."""

from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.decoding.rows import Rows
from tformer_cli.decoding.rules import Rules

# Width of the stretches that a vocabulary is cut into; near the root of its usual size.
STRETCH = 100
# With fewer rows the steps in between cost more than they save.
FEW_ROWS = 8
# So many rows' logits stay in the cache of one core between two passes over them.
ROWS_AT_ONCE = 32


class Offer(NamedTuple):
    """The best next tokens of each row, best first; each member is (B, K, n).

    Attributes:
        tokens: their ids.
        scores: what a search ranks them by.
        log_probs: natural logarithms of their probabilities.
    """

    tokens: Tensor
    scores: Tensor
    log_probs: Tensor


def offer(logits: Tensor, rules: Rules, rows: Rows, count: int) -> Offer:
    """Return the `count` best next tokens of each row, or all where the vocabulary is smaller.

    Args:
        logits: (B, K, V), in which nothing impossible is left.
        rules: what changes their ranks.
        rows: what is written.
        count: n.
    """
    if rules.has_effect:
        return best_of(*ranked(logits, rules, rows), count)
    shape = (*logits.shape[:2], -1)
    values, tokens = best_log_probs(logits.flatten(0, 1), count)
    log_probs = values.view(shape)
    return Offer(tokens.view(shape), log_probs, log_probs)


def ranked(logits: Tensor, rules: Rules, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return what all next tokens are ranked by, and their log probabilities, both (B, K, V)."""
    log_probs = log_softmax(logits)
    return rules.apply(log_probs, rows) if rules.has_effect else log_probs, log_probs


def best_of(scores: Tensor, log_probs: Tensor, count: int) -> Offer:
    """Return the `count` best next tokens of each row, from what `ranked` returns."""
    values, tokens = best_tokens(scores.flatten(0, 1), count)
    shape = (*scores.shape[:2], -1)
    found = tokens.view(shape)
    return Offer(found, values.view(shape), log_probs.gather(-1, found))


def log_softmax(logits: Tensor) -> Tensor:
    """Return log probabilities in float32, or in float64 where the logits are."""
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    return logits.log_softmax(dim=-1, dtype=wide)


def best_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest scores of each row, highest first, and their tokens.

    A token among the best lies in one of the `count` stretches with the best maxima, so only
    those are sorted.

    Args:
        scores: (N, V).
        count: how many; all where the vocabulary is smaller.

    Returns:
        Scores and tokens, each (N, count).
    """
    num_rows, vocab_size = scores.shape
    num_stretches = vocab_size // STRETCH
    if num_stretches <= 2 * count or num_rows < FEW_ROWS:
        best = scores.topk(min(count, vocab_size), dim=-1)
        return best.values, best.indices
    whole = num_stretches * STRETCH
    stretches = scores[:, :whole].view(num_rows, num_stretches, STRETCH)
    chosen = stretches.amax(dim=-1).topk(count, dim=-1, sorted=False).indices  # (N, count)
    rows = torch.arange(num_rows, device=scores.device)[:, None]
    first = torch.arange(STRETCH, device=scores.device)
    tokens = (chosen[:, :, None] * STRETCH + first).flatten(1)
    narrow = torch.cat((stretches[rows, chosen].flatten(1), scores[:, whole:]), dim=1)
    rest = torch.arange(whole, vocab_size, device=scores.device).expand(num_rows, -1)
    best = narrow.topk(count, dim=-1)
    return best.values, torch.cat((tokens, rest), dim=1).gather(1, best.indices)


def best_log_probs(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest log probabilities of each row, highest first, and their tokens.

    Args:
        logits: (N, V).
        count: how many; all where the vocabulary is smaller.

    Returns:
        Log probabilities in float32 (or float64) and tokens, each (N, count).
    """
    most = ROWS_AT_ONCE if logits.device.type == "cpu" else len(logits)
    best = [best_tokens(log_softmax(rows), count) for rows in torch.split(logits, most)]
    return torch.cat([values for values, _ in best]), torch.cat([tokens for _, tokens in best])
