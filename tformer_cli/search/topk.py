"""Log-softmax and top k over the vocabulary, without sorting it."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.kernels.softmax import log_softmax

# Tokens of each group that the vocabulary is divided into.
GROUP = 24
# For so few rows, of so few scores in all, the intermediate steps cost more than they save.
MIN_GROUPED_ROWS = 8
MIN_GROUPED_SCORES = 1 << 16


class NextTokens(NamedTuple):
    """All next tokens; it is cheaper to normalize a few of them than all.

    Logits minus `norms` are log probabilities, processed ones minus `norms` are scores.
    """

    processed_logits: Tensor  # (B, K, V) by the rules of the search
    logits: Tensor  # (B, K, V)
    norms: Tensor  # (B, K) logarithm of the sum of exp(logits)

    def topk(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the `k` best tokens of each sequence, their scores and their log probabilities.

        Each is (B, K, k), best first; a smaller vocabulary has fewer.
        """
        values, tokens = topk_tokens(self.processed_logits.flatten(0, 1), k)
        shape = (*self.logits.shape[:2], -1)
        tokens, norms = tokens.view(shape), self.norms[..., None]
        return tokens, values.view(shape) - norms, self.logits.gather(-1, tokens) - norms


def log_mean_probabilities(predictions: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability, by the logits (..., V) of several models.

    The logits of a single model are returned unchanged.
    """
    if len(predictions) == 1:
        return predictions[0]
    log_probs = torch.stack([log_softmax(logits) for logits in predictions])
    return log_probs.logsumexp(dim=0) - math.log(len(predictions))


def topk_tokens(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the `k` highest scores of each row (N, V) and their tokens, (N, k) both."""
    if _is_small(scores):
        k = min(k, scores.shape[1])
        values, tokens = scores.max(dim=-1, keepdim=True) if k == 1 else scores.topk(k, dim=-1)
        return values, tokens
    zeros = scores.new_zeros((len(scores), 1))
    _, tokens = topk_continuations(scores[:, None], zeros, zeros, k)
    return scores.gather(1, tokens), tokens


def topk_continuations(
    logits: Tensor, norms: Tensor, totals: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return the `k` highest of totals + (logits - norms) of each slot, or all if there are fewer.

    They are beam indices and tokens, (B, k) both, highest first, by logits (B, K, V), and norms and
    totals (B, K). They lie in the k groups with the highest maxima, so only these are sorted.
    """
    num_slots, num_beams, vocab_size = logits.shape
    num_groups = vocab_size // GROUP
    if num_groups <= 2 * k or _is_small(logits):
        scores = (totals[:, :, None] + (logits - norms[:, :, None])).flatten(1)
        best = scores.topk(min(k, scores.shape[1]), dim=-1).indices
        return best // vocab_size, best % vocab_size
    device = logits.device
    grouped_size = num_groups * GROUP
    # Group g has the tokens g, g + num_groups, ..., so the maxima of all groups vectorize.
    grouped = logits[:, :, :grouped_size].view(num_slots, num_beams, GROUP, num_groups)
    maxima = totals[:, :, None] + (grouped.amax(dim=2) - norms[:, :, None])
    groups = maxima.flatten(1).topk(k, dim=-1, sorted=False).indices
    first = groups // num_groups * vocab_size + groups % num_groups  # (B, k)
    members = first[:, :, None] + torch.arange(0, grouped_size, num_groups, device=device)
    rest = torch.arange(grouped_size, vocab_size, device=device)
    rest = torch.arange(num_beams, device=device)[:, None] * vocab_size + rest
    indices = torch.cat((members.flatten(1), rest.flatten().expand(num_slots, -1)), dim=1)
    beams = indices // vocab_size
    log_probs = logits.flatten(1).gather(1, indices) - norms.gather(1, beams)
    scores = totals.gather(1, beams) + log_probs
    best = indices.gather(1, scores.topk(k, dim=-1).indices)
    return best // vocab_size, best % vocab_size


def _is_small(logits: Tensor) -> bool:
    return logits.shape[:-1].numel() < MIN_GROUPED_ROWS and logits.numel() < MIN_GROUPED_SCORES
