"""Beam search, by the rules of CTranslate2, so that an exported model translates alike."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
from tformer_cli.search.rows import Sequences
from tformer_cli.search.rules import LogitsProcessor
from tformer_cli.search.search import SearchStep
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import ranked, topk_continuations


class BeamSearch:
    """K live rows for each sentence.

    At each step the 2K best continuations of the K live rows are taken. Those among the first K
    that end are stored, and the best of the rest that do not end take their places. A sentence
    is done when K * patience translations, rounded half up, are stored; without length and coverage
    penalty, when the best continuation has ended and `nbest` are stored; or at the length limit,
    where all live rows are stored. The score is log probability / length ** length_penalty, the end
    token counted; penalties of the rules count in it too. With a coverage penalty all that are
    stored come out, for which are the best is not known yet.
    """

    def __init__(
        self,
        config: BeamConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int = 1,
    ) -> None:
        """Set the rules.

        Args:
            config: beam size K, length penalty, patience, and the rules.
            special_tokens: start, end and suppressed ids.
            device: where the logits are.
            nbest: translations wanted of each sentence, at most K.
        """
        self.config = config
        self.special_tokens = special_tokens
        self.device = device
        self.rules = LogitsProcessor(config, special_tokens, device)
        self.nbest = nbest
        # What is stored is ranked anew by what it covers.
        self.num_kept = nbest if config.coverage_penalty == 0 else None
        self.num_beams = config.beam_size
        self.enough = max(nbest, config.enough)

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        self.rules.start(requests)
        self.rows = Sequences(len(requests), self.num_beams, self.special_tokens.bos, self.device)
        self.totals = torch.zeros((len(requests), self.num_beams), device=self.device)
        self.log_probs = torch.zeros_like(self.totals)
        self.stored: list[list[Hypothesis]] = [[] for _ in requests]
        self.top_ended = [False] * len(requests)
        self._begin(torch.arange(len(requests), device=self.device))

    def insert(self, places: Tensor, requests: Sequence[Request]) -> None:
        """Begin these requests in places whose sentences are done."""
        self.rules.insert(places, requests)
        self.rows.insert(places)
        for place in places.tolist():
            self.stored[place], self.top_ended[place] = [], False
        self._begin(places)

    def _begin(self, places: Tensor) -> None:
        # All rows of a sentence are equal at first, so only the first of them competes.
        self.totals[places] = -math.inf
        self.totals[places, 0] = 0.0
        self.log_probs[places] = 0.0

    def select(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        self.rules.select(places)
        self.rows.select(places)
        self.totals, self.log_probs = self.totals[places], self.log_probs[places]
        self.stored = [self.stored[place] for place in places.tolist()]
        self.top_ended = [self.top_ended[place] for place in places.tolist()]

    def advance(self, stepper: Stepper) -> SearchStep:
        """Let the best continuations take the places of the live rows."""
        return self.take(stepper.step(self.rows.last))

    def take(self, logits: Tensor) -> SearchStep:
        """Do as `advance`, when the logits (B, K, V) of what follows are known."""
        rows, size = self.rows, self.num_beams
        self.rules.suppress_tokens(logits, rows)
        found = self._continuations(logits)
        ends = found.tokens == self.special_tokens.eos
        is_last = rows.lengths + 1 == self.rules.most
        leaving = (ends | is_last[:, None])[:, :size] & (found.totals[:, :size] > -math.inf)
        self._store(rows.active[:, None] & leaving, found)
        last = is_last.tolist()
        ended = {}
        for place in (rows.active & (leaving.any(dim=1) | is_last)).nonzero()[:, 0].tolist():
            if last[place] or self._is_done(place):
                ended[place] = self._best(place)
                rows.active[place] = False
        chosen = live_continuations(ends, size)
        self.totals = found.totals.gather(1, chosen)
        self.log_probs = found.log_probs.gather(1, chosen)
        beam_indices = found.beam_indices.gather(1, chosen)
        rows.reorder(beam_indices)
        rows.append(found.tokens.gather(1, chosen))
        return SearchStep(beam_indices, ended)

    def _continuations(self, logits: Tensor) -> "Continuations":
        """Return the 2K best continuations of each sentence."""
        scores, log_probs, norms = ranked(logits, self.rules, self.rows)
        sums = (self.totals, self.log_probs)
        return best_continuations(sums, scores, log_probs, norms, 2 * self.num_beams)

    def _store(self, leaving: Tensor, found: "Continuations") -> None:
        """Store the candidates that end, or end here; `leaving` is (B, K)."""
        places, ranks = leaving.nonzero(as_tuple=True)
        if len(places) == 0:
            return
        candidates = Continuations(*(part[places, ranks] for part in found))
        written = self.rows.written(places, candidates.beam_indices)
        columns = (part.tolist() for part in (places, ranks, *candidates))
        for ids, place, rank, total, log_prob, origin, token in zip(written, *columns, strict=True):
            finished = token == self.special_tokens.eos
            score = total / (len(ids) + 1) ** self.config.length_penalty
            one = Hypothesis(ids if finished else (*ids, token), log_prob, score, finished)
            self.stored[place].append(self._judged(place, origin, one))
            self.top_ended[place] |= rank == 0

    def _judged(self, place: int, origin: int, one: Hypothesis) -> Hypothesis:
        """Return what is stored of a candidate that goes on from row `origin` of a place."""
        return one

    def _is_done(self, place: int) -> bool:
        if self.config.length_penalty == self.config.coverage_penalty == 0:
            return self.top_ended[place] and len(self.stored[place]) >= self.nbest
        return len(self.stored[place]) >= self.enough

    def _best(self, place: int) -> list[Hypothesis]:
        # A stable sort: of equal scores the one found first comes first.
        found = sorted(self.stored[place], key=lambda one: one.score, reverse=True)
        return found[: self.num_kept]


class Continuations(NamedTuple):
    """Sequences with one more token; each member is (B, n), best first.

    Attributes:
        totals: sum of scores.
        log_probs: sum of log probabilities.
        beam_indices: which row 0..K-1 goes on.
        tokens: its new token.
    """

    totals: Tensor
    log_probs: Tensor
    beam_indices: Tensor
    tokens: Tensor


def best_continuations(
    sums: tuple[Tensor, Tensor], scores: Tensor, log_probs: Tensor, norms: Tensor, count: int
) -> Continuations:
    """Return the best continuations of each sentence.

    Args:
        sums: of the scores and of the log probabilities of each live row, (B, K) both.
        scores: (B, K, V) of all next tokens.
        log_probs: (B, K, V) of all next tokens.
        norms: (B, K) what is to be taken off all scores and log probabilities of a row.
        count: how many are wanted; fewer come where there are fewer.
    """
    totals, total_log_probs = sums
    beam_indices, tokens = topk_continuations(scores, norms, totals, count)
    index = (torch.arange(len(scores), device=scores.device)[:, None], beam_indices)
    return Continuations(
        totals[index] + (scores[*index, tokens] - norms[index]),
        total_log_probs[index] + (log_probs[*index, tokens] - norms[index]),
        beam_indices,
        tokens,
    )


def live_continuations(ends: Tensor, size: int) -> Tensor:
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
