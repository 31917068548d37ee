"""Beam search, by the rules of CTranslate2, so that an exported model translates alike."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tformer_cli.config.schema import BeamConfig
from tformer_cli.decoding.hypothesis import Hypothesis
from tformer_cli.decoding.processors import TokenRoles, log_probabilities
from tformer_cli.decoding.stepper import Stepper


def beam_search(
    stepper: Stepper,
    sentences: Sequence[Sequence[int]],
    config: BeamConfig,
    roles: TokenRoles,
    device: torch.device,
    *,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """Return the `nbest` best translations of each sentence, best first.

    At each step the 2K best continuations of the K live rows are taken. Those among the first K
    that end are stored, and the best of the rest that do not end take their places. A sentence
    is done when round(K * patience) translations are stored; without length penalty, when the
    best continuation has ended and `nbest` are stored; or at the length limit, where all live
    rows are stored. The score is log probability / length ** length_penalty, the end token
    counted.

    Args:
        stepper: says what may come next.
        sentences: source token ids.
        config: beam size K, length penalty, patience, length limit.
        roles: start, end and suppressed ids.
        device: where the stepper's logits are.
        nbest: translations wanted of each sentence, at most K.
    """
    size = config.size
    enough = max(nbest, round(size * config.patience))
    stored: list[list[Hypothesis]] = [[] for _ in sentences]
    stepper.start(sentences, size)
    alive = list(range(len(sentences)))
    top_ended = [False] * len(sentences)
    # All rows of a sentence are equal at first, so only the first of them competes.
    totals = torch.full((len(sentences), size), -math.inf, device=device)
    totals[:, 0] = 0.0
    written = torch.full((len(sentences), size, 1), roles.start_id, device=device)
    for length in range(1, config.max_length + 1):
        is_last = length == config.max_length
        logits = stepper.step(written[:, :, -1].flatten())
        step_log_probs = log_probabilities(logits, roles, is_first=length == 1)
        candidates, origins, tokens = _best_continuations(totals, step_log_probs, 2 * size)
        ends = tokens == roles.end_id
        leaving = torch.ones_like(ends) if is_last else ends
        done = []
        for place, rank in leaving[:, :size].nonzero().tolist():
            total = float(candidates[place, rank])
            if total == -math.inf:
                continue
            row = written[place, origins[place, rank], 1:].tolist()
            finished = bool(ends[place, rank])
            if not finished:
                row.append(int(tokens[place, rank]))
            score = total / length**config.length_penalty
            stored[alive[place]].append(Hypothesis(tuple(row), total, score, finished))
            top_ended[place] |= rank == 0
        for place, sentence in enumerate(alive):
            if config.length_penalty == 0:
                is_done = top_ended[place] and len(stored[sentence]) >= nbest
            else:
                is_done = len(stored[sentence]) >= enough
            if is_done or is_last:
                done.append(place)
        if len(done) == len(alive):
            break
        chosen = _live_continuations(ends, size)
        totals = candidates.gather(1, chosen)
        origins = origins.gather(1, chosen)
        tokens = tokens.gather(1, chosen)
        kept = sorted(set(range(len(alive))) - set(done))
        places = torch.tensor(kept, device=device)
        totals, origins, tokens = totals[places], origins[places], tokens[places]
        stepper.select((places[:, None] * size + origins).flatten(), places if done else None)
        written = written[places[:, None], origins]
        written = torch.cat((written, tokens[:, :, None]), dim=2)
        alive = [alive[place] for place in kept]
        top_ended = [top_ended[place] for place in kept]
    # A stable sort: of equal scores the one found first comes first.
    return [
        sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True)[:nbest]
        for found in stored
    ]


def _best_continuations(
    totals: Tensor, step_log_probs: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best continuations of each sentence, best first.

    Args:
        totals: (B, K) log probability of each live row.
        step_log_probs: (B * K, V) of each token that may follow.
        count: how many are wanted; fewer come where the vocabulary is smaller than that.

    Returns:
        Their log probabilities, the rows 0..K-1 they continue, and their last tokens, each
        (B, count).
    """
    vocab_size = step_log_probs.shape[-1]
    flat = (totals[:, :, None] + step_log_probs.view(*totals.shape, vocab_size)).flatten(1)
    candidates, places = flat.topk(min(count, flat.shape[1]), dim=-1)
    return candidates, places // vocab_size, places % vocab_size


def _live_continuations(ends: Tensor, size: int) -> Tensor:
    """Return which candidates stay alive, (B, K) indices into the candidates.

    The first K stay; the place of one that ends goes to the best later one that does not, each
    of them taken once.

    Args:
        ends: (B, 2K) whether a candidate ends.
        size: K.
    """
    first, rest = ends[:, :size], ends[:, size:]
    substitutes = size + rest.int().argsort(dim=-1, stable=True)
    turn = (first.int().cumsum(dim=-1) - 1).clamp(min=0, max=rest.shape[1] - 1)
    itself = torch.arange(size, device=ends.device).expand_as(first)
    return torch.where(first, substitutes.gather(1, turn), itself)
