"""Beam search for required phrases, by dynamic beam allocation (Post and Vilar 2018)."""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.beam import BeamHypotheses, BeamSearch, BeamState, Candidates, n_best
from tformer_cli.search.engine import Hypothesis, Phrase, Request
from tformer_cli.search.state import SearchStep
from tformer_cli.search.topk import NextTokens, topk_tokens


class ConstraintState:
    """How much of the required phrases a sequence has met (automaton of Anderson et al. 2017).

    A phrase that is listed n times must occur at n positions; occurrences may overlap. States are
    made when first reached, once for all sequences of a sentence.
    """

    def __init__(
        self,
        phrases: tuple[Phrase, ...],
        missing: tuple[Phrase, ...],
        partial: Phrase,
        states: dict[tuple[tuple[Phrase, ...], Phrase], "ConstraintState"],
    ) -> None:
        self._phrases = phrases
        self._missing = missing  # phrases that have still to occur
        self._partial = partial  # longest suffix that is a proper prefix of a missing phrase
        self._states = states
        self._successors: dict[int, ConstraintState] = {}
        self.num_met = len(phrases) - len(missing)
        self.is_complete = not missing
        # Tokens of the met phrases and of the partial one: the bank of the sequence.
        self.num_tokens = sum(map(len, phrases)) - sum(map(len, missing)) + len(partial)
        # Tokens that continue a phrase, so that `num_tokens` grows.
        continued = [phrase for phrase in missing if _is_begun(phrase, partial)]
        self.next_tokens = sorted({phrase[len(partial)] for phrase in continued})

    @classmethod
    def initial(cls, phrases: Sequence[Phrase]) -> "ConstraintState":
        """Return the state of an empty sequence."""
        return cls(tuple(phrases), tuple(phrases), (), {})

    def reached(self, tokens: Sequence[int]) -> "ConstraintState":
        """Return the state of the sequence with more tokens."""
        return functools.reduce(ConstraintState.after, tokens, self)

    def after(self, token: int) -> "ConstraintState":
        """Return the state of the sequence with one more token."""
        if token not in self._successors:
            self._successors[token] = self._successor(token)
        return self._successors[token]

    def _successor(self, token: int) -> "ConstraintState":
        suffix = (*self._partial, token)
        missing = list(self._missing)
        for phrase in set(missing):
            if suffix[-len(phrase) :] == phrase:
                missing.remove(phrase)
        while suffix and not any(_is_begun(phrase, suffix) for phrase in missing):
            suffix = suffix[1:]
        key = (tuple(missing), suffix)
        if key not in self._states:
            self._states[key] = ConstraintState(self._phrases, *key, self._states)
        return self._states[key]


def _is_begun(phrase: Phrase, partial: Phrase) -> bool:
    """Return whether `partial` is a proper prefix of a phrase."""
    return len(phrase) > len(partial) and phrase[: len(partial)] == partial


class Candidate(NamedTuple):
    """Continuation of a live sequence by one token."""

    total: float  # sum of scores
    log_prob: float  # sum of log probabilities
    beam_index: int  # sequence that is continued
    token: int  # new token
    state: ConstraintState  # of the sequence with it


def _by_total(candidate: Candidate) -> float:
    return candidate.total


class ConstrainedBeam(BeamHypotheses):
    """The stored hypotheses and the live sequences of a sentence with required phrases.

    Sequences may wait for a good position of a phrase until as many would have ended without
    phrases as end a plain beam search. What follows after that is of low quality, so from then on
    every sequence continues with its phrases, until as many complete ones have ended.
    """

    def __init__(self, config: BeamConfig, nbest: int, eos: int, phrases: Sequence[Phrase]) -> None:
        super().__init__(config, nbest)
        self.initial = ConstraintState.initial(phrases)
        self.states = [self.initial] * config.beam_size  # of the live sequences
        self.is_over = False
        self._eos = eos
        self._num_ended = 0
        self._may_wait = True

    def add(self, hypothesis: Hypothesis, rank: int) -> None:
        """Store a hypothesis; without all phrases it counts as unfinished."""
        is_complete = self.initial.reached(hypothesis.token_ids).is_complete
        super().add(replace(hypothesis, finished=hypothesis.finished and is_complete), rank)

    def is_done(self) -> bool:
        return False  # `is_settled` decides when the live sequences of the step are known

    def is_settled(self, best_live_score: float) -> bool:
        """Return whether the search of the sentence is done, by the score of its best sequence."""
        if best_live_score == -math.inf:
            return True
        scores = [hypothesis.score for hypothesis in self.stored if hypothesis.finished]
        if self.is_over:
            return len(scores) >= self.nbest
        num_better = sum(score >= best_live_score for score in scores)
        return num_better >= self.nbest and super().is_done()

    def best(self) -> list[Hypothesis]:
        """Return the best hypotheses among those with most phrases."""
        num_met = {part: self.initial.reached(part.token_ids).num_met for part in self.stored}
        most = max(num_met.values(), default=0)
        best = [hypothesis for hypothesis in self.stored if num_met[hypothesis] == most]
        return n_best(best, self.config, self.nbest)

    def append(self, beam_indices: Sequence[int], tokens: Sequence[int]) -> None:
        """Let sequence k continue sequence beam_indices[k] by a token."""
        pairs = zip(beam_indices, tokens, strict=True)
        self.states = [self.states[index].after(token) for index, token in pairs]

    def candidates(
        self,
        tokens: Sequence[Sequence[int]],
        totals: Sequence[Sequence[float]],
        log_probs: Sequence[Sequence[float]],
    ) -> list[Candidate]:
        """Return the possible continuations of all sequences, best first.

        Next tokens are listed for each sequence, perhaps twice, with the sums of scores and of log
        probabilities.
        """
        candidates = {
            (index, token): Candidate(
                total, log_prob, index, token, self.states[index].after(token)
            )
            for index, columns in enumerate(zip(tokens, totals, log_probs, strict=True))
            for token, total, log_prob in zip(*columns, strict=True)
            if total > -math.inf
        }
        return sorted(candidates.values(), key=_by_total, reverse=True)

    def allocate(self, candidates: Sequence[Candidate], *, is_last: bool) -> list[Candidate]:
        """Return the K candidates to continue by, best first, and then what replaces ended ones.

        An incomplete sequence ends only if no sequence can do anything else. The last step is that
        at the length limit.
        """
        size = self.config.beam_size
        self._count_ended(candidates[:size])
        possible = [
            candidate
            for candidate in candidates
            if candidate.token != self._eos or candidate.state.is_complete
        ] or candidates
        if not self._may_wait:
            possible = list(filter(self._is_progress, possible)) or possible
        order = sort_by_met(possible) if is_last else allocate_banks(possible)
        rest = [candidate for candidate in order[size:] if candidate.token != self._eos]
        rest.sort(key=_by_total, reverse=True)
        # Only complete sequences end, so complete ones replace them first.
        rest.sort(key=lambda candidate: not candidate.state.is_complete)
        return sorted(order[:size], key=_by_total, reverse=True) + rest

    def _count_ended(self, best: Sequence[Candidate]) -> None:
        """Count what ends among the candidates that a plain beam search would choose."""
        self._num_ended += sum(
            candidate.token == self._eos and (self._may_wait or candidate.state.is_complete)
            for candidate in best
        )
        if self._num_ended >= max(self.nbest, self.config.enough):
            self.is_over = not self._may_wait
            self._may_wait = False
            self._num_ended = 0

    def _is_progress(self, candidate: Candidate) -> bool:
        before = self.states[candidate.beam_index]
        return candidate.state.is_complete or candidate.state.num_tokens > before.num_tokens


def allocate_banks(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates, best first, in the order in which they enter the beam.

    Candidates with equal `num_tokens` are a bank. In each round every bank contributes its best
    remaining candidate: first the most advanced bank, then the others by their totals. So banks
    have equal shares, what a bank cannot use goes to others, and the most advanced bank is never
    empty.
    """
    furthest = max((candidate.state.num_tokens for candidate in candidates), default=0)
    sizes: Counter[int] = Counter()
    keys = []
    for candidate in candidates:
        bank = candidate.state.num_tokens
        keys.append((sizes[bank], bank != furthest))
        sizes[bank] += 1
    return [candidates[index] for index in sorted(range(len(keys)), key=keys.__getitem__)]


def sort_by_met(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates, those with most phrases first; equal ones keep their order."""
    return sorted(candidates, key=lambda candidate: -candidate.state.num_met)


class ConstrainedBeamSearch(BeamSearch):
    """Beam search for requests with and without required phrases.

    A sequence ends only with all phrases of its request. Candidates are the best continuations of
    each sequence and those that continue a phrase; `ConstrainedBeam` allocates the beam to them.

    Sequences that write the phrases at once end early, with low scores. So a sentence is done when,
    besides the conditions of `BeamSearch`, no live sequence has a better score than the `nbest`
    best hypotheses; or when no sequence may wait any more and enough have ended. At the length
    limit sequences with most phrases win; incomplete ones count as unfinished.
    """

    def _hypotheses(self, request: Request) -> BeamHypotheses:
        if not request.required:
            return super()._hypotheses(request)
        return ConstrainedBeam(self.config, self.nbest, self.eos, request.required)

    def _beams(self, state: BeamState) -> dict[int, ConstrainedBeam]:
        """Return the beams of the active slots with required phrases."""
        active = state.sequences.active.tolist()
        return {
            slot: beam
            for slot, beam in enumerate(state.hypotheses)
            if isinstance(beam, ConstrainedBeam) and active[slot]
        }

    def advance(self, state: BeamState, candidates: Candidates) -> SearchStep:
        step = super().advance(state, candidates)
        beams = self._beams(state)
        if not beams:
            return step
        assert step.beam_indices is not None
        sequences = state.sequences
        slots = torch.tensor(list(beams), device=self.device)
        best_totals = state.totals[slots].amax(dim=1)
        parts = (sequences.lengths, step.beam_indices, sequences.last)
        columns = (best_totals.tolist(), *(part[slots].tolist() for part in parts))
        finished = dict(step.finished)
        for (slot, beam), total, length, *continued in zip(beams.items(), *columns, strict=True):
            beam.append(*continued)
            if beam.is_settled(total / length**self.config.length_penalty):
                finished[slot] = beam.best()
                sequences.active[slot] = False
        return SearchStep(step.beam_indices, finished)

    def _candidates(self, state: BeamState, next_tokens: NextTokens) -> Candidates:
        candidates = super()._candidates(state, next_tokens)
        beams = self._beams(state)
        if not beams:
            return candidates
        slots = torch.tensor(list(beams), device=self.device)
        is_last = (state.sequences.lengths + 1 == state.sequences.max_lengths)[slots]
        offered = self._offered(state, next_tokens, slots, list(beams.values()))
        columns = (part.tolist() for part in (is_last, *offered))
        width = candidates.totals.shape[1]
        padding = [(-math.inf, -math.inf, 0, self.bos)] * width
        rows = []
        for beam, last, *parts in zip(beams.values(), *columns, strict=True):
            chosen = beam.allocate(beam.candidates(*parts), is_last=last)
            rows.append([*(candidate[:4] for candidate in chosen), *padding][:width])
        values = torch.tensor(rows, dtype=torch.float64)
        for member, chosen_values in zip(candidates, values.unbind(dim=2), strict=True):
            member[slots] = chosen_values.to(member)
        return candidates

    def _offered(
        self,
        state: BeamState,
        next_tokens: NextTokens,
        slots: Tensor,
        beams: Sequence[ConstrainedBeam],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens (B', K, n) that may continue the sequences, with totals and log probs."""
        processed, logits, norms = next_tokens
        norms = norms[slots][:, :, None]
        best = topk_tokens(processed[slots].flatten(0, 1), 2 * self.num_beams)[1]
        # The tokens that continue phrases, padded with BOS, which is suppressed.
        continuing = [[state.next_tokens for state in beam.states] for beam in beams]
        width = max(len(part) for row in continuing for part in row)
        padded = [[[*part, *[self.bos] * width][:width] for part in row] for row in continuing]
        more = torch.tensor(padded, dtype=torch.long, device=self.device)
        tokens = torch.cat((best.view(*norms.shape[:2], -1), more), dim=2)
        index = (slots[:, None, None], torch.arange(self.num_beams, device=self.device)[:, None])
        before = state.log_probs[slots][:, :, None]
        totals = state.totals[slots][:, :, None] + (processed[*index, tokens] - norms)
        sums = before + (logits[*index, tokens] - norms)
        # A sequence that ends without all phrases counts as unfinished, so EOS does not count.
        is_complete = [[part.is_complete for part in beam.states] for beam in beams]
        is_early = ~torch.tensor(is_complete, device=self.device)[:, :, None] & (tokens == self.eos)
        return tokens, totals, torch.where(is_early, before, sums)
