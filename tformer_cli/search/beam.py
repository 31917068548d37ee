"""Beam search by the rules of CTranslate2, so that exported models translate alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.continuous_batching import Search
from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.search.state import SearchState, SearchStep, Sequences, by_score
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import NextTokens, topk_continuations


class BeamHypotheses:
    """Hypotheses stored for a sentence, and whether its search is done."""

    def __init__(self, config: BeamConfig, nbest: int) -> None:
        self.config = config
        self.nbest = nbest
        self.stored: list[Hypothesis] = []
        self.has_top = False

    def add(self, hypothesis: Hypothesis, rank: int) -> None:
        """Store a hypothesis that was candidate number `rank` of its step, counted from 0."""
        self.stored.append(hypothesis)
        self.has_top |= rank == 0

    def is_done(self) -> bool:
        """Return whether the search of the sentence is done before the length limit."""
        if self.config.length_penalty == self.config.coverage_penalty == 0:
            return self.has_top and len(self.stored) >= self.nbest
        return len(self.stored) >= max(self.nbest, self.config.enough)

    def best(self) -> list[Hypothesis]:
        """Return the n best, or all with a coverage penalty, which is not part of scores yet."""
        return by_score(self.stored)[: self.nbest if self.config.coverage_penalty == 0 else None]


@dataclass(slots=True)
class BeamState(SearchState):
    """State of a beam search."""

    sequences: Sequences
    totals: Tensor  # (B, K) sums of scores
    log_probs: Tensor  # (B, K) sums of log probabilities
    hypotheses: list[BeamHypotheses]


class Candidates(NamedTuple):
    """Continuations of live sequences by one token; each member is (B, n), best first."""

    totals: Tensor  # sums of scores
    log_probs: Tensor  # sums of log probabilities
    beam_indices: Tensor  # sequences that are continued
    tokens: Tensor  # new tokens


class BeamSearch(Search[BeamConfig, BeamState]):
    """K live sequences per sentence.

    Each step takes the 2K best continuations of the live sequences as candidates. Those of the
    first K that end with EOS are stored as hypotheses; the best later candidates without EOS
    replace them. A sentence is done when K * patience hypotheses, rounded half up, are stored;
    without length and coverage penalty, when the best candidate has ended and `nbest` are stored;
    or at the length limit, where all live sequences are stored. The score is
    log probability / length ** length_penalty, with EOS and penalties of the rules counted.
    """

    def start(self, requests: Sequence[Request]) -> BeamState:
        log_probs = torch.zeros((len(requests), self.num_beams), device=self.device)
        # All sequences of a slot are equal at first, so only the first one competes.
        totals = torch.full_like(log_probs, -math.inf)
        totals[:, 0] = 0.0
        hypotheses = [self._hypotheses(request) for request in requests]
        sequences = self.processor.start(requests, self.num_beams)
        return BeamState(sequences, totals, log_probs, hypotheses)

    def _hypotheses(self, request: Request) -> BeamHypotheses:
        return BeamHypotheses(self.config, self.nbest)

    def step(self, state: BeamState, stepper: Stepper) -> SearchStep:
        next_tokens = self.processor(stepper.step(state.sequences.last), state.sequences)
        return self.advance(state, self._candidates(state, next_tokens))

    def _candidates(self, state: BeamState, next_tokens: NextTokens) -> Candidates:
        """Return the 2K best continuations of each slot, or all if there are fewer."""
        scores, log_probs, norms = next_tokens
        beams, tokens = topk_continuations(scores, norms, state.totals, 2 * self.num_beams)
        index = (torch.arange(len(beams), device=self.device)[:, None], beams)
        return Candidates(
            state.totals[index] + (scores[*index, tokens] - norms[index]),
            state.log_probs[index] + (log_probs[*index, tokens] - norms[index]),
            beams,
            tokens,
        )

    def advance(self, state: BeamState, candidates: Candidates) -> SearchStep:
        """Store candidates that end, and continue by the others."""
        sequences, size = state.sequences, self.num_beams
        has_eos = candidates.tokens == self.eos
        is_last = sequences.lengths + 1 == sequences.max_lengths
        is_stored = (has_eos | is_last[:, None])[:, :size]
        is_stored &= (candidates.totals[:, :size] > -math.inf) & sequences.active[:, None]
        self._store(state, is_stored, candidates)
        last = is_last.tolist()
        finished = {}
        for slot in (sequences.active & (is_stored.any(dim=1) | is_last)).nonzero()[:, 0].tolist():
            if last[slot] or state.hypotheses[slot].is_done():
                finished[slot] = state.hypotheses[slot].best()
                sequences.active[slot] = False
        live = live_candidates(has_eos, size)
        state.totals = candidates.totals.gather(1, live)
        state.log_probs = candidates.log_probs.gather(1, live)
        beam_indices = candidates.beam_indices.gather(1, live)
        sequences.reorder(beam_indices)
        sequences.append(candidates.tokens.gather(1, live))
        return SearchStep(beam_indices, finished)

    def _store(self, state: BeamState, is_stored: Tensor, candidates: Candidates) -> None:
        """Store the candidates in a mask (B, K)."""
        slots, ranks = is_stored.nonzero(as_tuple=True)
        if len(slots) == 0:
            return
        chosen = Candidates(*(part[slots, ranks] for part in candidates))
        prefixes = state.sequences.token_ids(slots, chosen.beam_indices)
        parts = (slots, ranks, chosen.totals, chosen.log_probs, chosen.tokens)
        columns = (part.tolist() for part in parts)
        for ids, slot, rank, total, log_prob, token in zip(prefixes, *columns, strict=True):
            score = total / (len(ids) + 1) ** self.config.length_penalty
            has_eos = token == self.eos
            hypothesis = Hypothesis(ids if has_eos else (*ids, token), log_prob, score, has_eos)
            state.hypotheses[slot].add(hypothesis, rank)


def live_candidates(has_eos: Tensor, size: int) -> Tensor:
    """Return the indices (B, K) of the candidates (B, 2K) that stay alive.

    These are the first K; each of them that ends is replaced by the best later candidate that does
    not end and replaces no other.
    """
    first, rest = has_eos[:, :size], has_eos[:, size:]
    substitutes = size + rest.int().argsort(dim=-1, stable=True)
    order = (first.int().cumsum(dim=-1) - 1).clamp(min=0, max=rest.shape[1] - 1)
    itself = torch.arange(size, device=has_eos.device).expand_as(first)
    return torch.where(first, substitutes.gather(1, order), itself)
