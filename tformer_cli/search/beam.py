"""Beam search by the rules of CTranslate2, so that exported models translate alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.logits_processors import LogitsProcessor, RequestState
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
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
    """State of a beam search.

    Attributes:
        requests: of each slot.
        sequences: K live sequences per slot.
        totals: (B, K) sums of scores.
        log_probs: (B, K) sums of log probabilities.
        hypotheses: stored for each slot.
    """

    requests: RequestState
    sequences: Sequences
    totals: Tensor
    log_probs: Tensor
    hypotheses: list[BeamHypotheses]


class Candidates(NamedTuple):
    """Continuations of live sequences by one token; each member is (B, n), best first.

    Attributes:
        totals: sums of scores.
        log_probs: sums of log probabilities.
        beam_indices: the sequence 0..K-1 that is continued.
        tokens: the new token.
    """

    totals: Tensor
    log_probs: Tensor
    beam_indices: Tensor
    tokens: Tensor


class BeamSearch:
    """K live sequences per sentence.

    Each step takes the 2K best continuations of the live sequences as candidates. Those of the
    first K that end with EOS are stored as hypotheses; the best later candidates without EOS
    replace them. A sentence is done when K * patience hypotheses, rounded half up, are stored;
    without length and coverage penalty, when the best candidate has ended and `nbest` are stored;
    or at the length limit, where all live sequences are stored. The score is
    log probability / length ** length_penalty, with EOS and penalties of the rules counted.
    """

    def __init__(
        self,
        config: BeamConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int = 1,
    ) -> None:
        self.config = config
        self.special_tokens = special_tokens
        self.device = device
        self.nbest = nbest
        self.num_beams = config.beam_size
        self.processor = LogitsProcessor(config, special_tokens, device)

    def start(self, requests: Sequence[Request]) -> BeamState:
        """Return the state of a slot for each request."""
        shape = (len(requests), self.num_beams)
        # All sequences of a slot are equal at first, so only the first one competes.
        totals = torch.full(shape, -math.inf, device=self.device)
        totals[:, 0] = 0.0
        return BeamState(
            requests=self.processor.start(requests),
            sequences=Sequences.empty(*shape, self.special_tokens.bos, self.device),
            totals=totals,
            log_probs=torch.zeros(shape, device=self.device),
            hypotheses=[self._hypotheses(request) for request in requests],
        )

    def _hypotheses(self, request: Request) -> BeamHypotheses:
        return BeamHypotheses(self.config, self.nbest)

    def step(self, state: BeamState, stepper: Stepper) -> SearchStep:
        """Continue the live sequences by the best candidates."""
        logits = stepper.step(state.sequences.last)
        next_tokens = self.processor(logits, state.sequences, state.requests)
        return self._advance(state, self._candidates(state, next_tokens))

    def _candidates(self, state: BeamState, next_tokens: NextTokens) -> Candidates:
        """Return the 2K best continuations of each slot, or fewer where there are fewer."""
        scores, log_probs, norms = next_tokens
        beams, tokens = topk_continuations(scores, norms, state.totals, 2 * self.num_beams)
        index = (torch.arange(len(beams), device=self.device)[:, None], beams)
        return Candidates(
            state.totals[index] + (scores[*index, tokens] - norms[index]),
            state.log_probs[index] + (log_probs[*index, tokens] - norms[index]),
            beams,
            tokens,
        )

    def _advance(self, state: BeamState, candidates: Candidates) -> SearchStep:
        """Store candidates that end, and continue by the others."""
        sequences, size = state.sequences, self.num_beams
        is_eos = candidates.tokens == self.special_tokens.eos
        is_last = sequences.lengths + 1 == state.requests.max_lengths
        is_stored = (is_eos | is_last[:, None])[:, :size] & (
            candidates.totals[:, :size] > -math.inf
        )
        self._store(state, sequences.active[:, None] & is_stored, candidates)
        last = is_last.tolist()
        finished = {}
        for slot in (sequences.active & (is_stored.any(dim=1) | is_last)).nonzero()[:, 0].tolist():
            if last[slot] or state.hypotheses[slot].is_done():
                finished[slot] = state.hypotheses[slot].best()
                sequences.active[slot] = False
        live = live_candidates(is_eos, size)
        state.totals = candidates.totals.gather(1, live)
        state.log_probs = candidates.log_probs.gather(1, live)
        beam_indices = candidates.beam_indices.gather(1, live)
        sequences.reorder(beam_indices)
        sequences.append(candidates.tokens.gather(1, live))
        return SearchStep(beam_indices, finished)

    def _store(self, state: BeamState, is_stored: Tensor, candidates: Candidates) -> None:
        """Store the candidates that a mask (B, K) names."""
        slots, ranks = is_stored.nonzero(as_tuple=True)
        if len(slots) == 0:
            return
        chosen = Candidates(*(part[slots, ranks] for part in candidates))
        prefixes = state.sequences.token_ids(slots, chosen.beam_indices)
        parts = (slots, ranks, chosen.totals, chosen.log_probs, chosen.tokens)
        for ids, slot, rank, total, log_prob, token in zip(
            prefixes, *(part.tolist() for part in parts), strict=True
        ):
            is_finished = token == self.special_tokens.eos
            score = total / (len(ids) + 1) ** self.config.length_penalty
            token_ids = ids if is_finished else (*ids, token)
            hypothesis = Hypothesis(token_ids, log_prob, score, is_finished)
            state.hypotheses[slot].add(hypothesis, rank)


def live_candidates(is_eos: Tensor, size: int) -> Tensor:
    """Return the indices (B, K) of the candidates that stay alive.

    These are the first K; each of them that ends is replaced by the best later candidate that does
    not end and replaces no other.

    Args:
        is_eos: (B, 2K) whether a candidate ends.
        size: K.
    """
    first, rest = is_eos[:, :size], is_eos[:, size:]
    substitutes = size + rest.int().argsort(dim=-1, stable=True)
    order = (first.int().cumsum(dim=-1) - 1).clamp(min=0, max=rest.shape[1] - 1)
    itself = torch.arange(size, device=is_eos.device).expand_as(first)
    return torch.where(first, substitutes.gather(1, order), itself)
