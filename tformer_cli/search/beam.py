"""Beam search by the rules of CTranslate2, so that exported models translate alike, and diverse."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.continuous_batching import Search
from tformer_cli.search.engine import Hypothesis, Request, by_score
from tformer_cli.search.state import SearchState, SearchStep, Sequences
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
        return n_best(self.stored, self.config, self.nbest)


def n_best(hypotheses: Iterable[Hypothesis], config: BeamConfig, count: int) -> list[Hypothesis]:
    """Return the n best, or all with a coverage penalty, which is not part of scores yet."""
    return by_score(hypotheses)[: count if config.coverage_penalty == 0 else None]


@dataclass(slots=True)
class BeamState(SearchState):
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
        processed, logits, norms = next_tokens
        beams, tokens = topk_continuations(processed, norms, state.totals, 2 * self.num_beams)
        index = (torch.arange(len(beams), device=self.device)[:, None], beams)
        return Candidates(
            state.totals[index] + (processed[*index, tokens] - norms[index]),
            state.log_probs[index] + (logits[*index, tokens] - norms[index]),
            beams,
            tokens,
        )

    def advance(self, state: BeamState, candidates: Candidates) -> SearchStep:
        """Store candidates that end, and continue by the others."""
        sequences = state.sequences
        size = self.num_beams
        has_eos = candidates.tokens == self.eos
        is_last = sequences.lengths + 1 == sequences.max_lengths
        is_stored = (has_eos | is_last[:, None])[:, :size]
        is_stored &= (candidates.totals[:, :size] > -math.inf) & sequences.active[:, None]
        # On the CPU from here on, by one transfer a step.
        events = torch.cat((is_stored, (sequences.active & is_last)[:, None]), dim=1).cpu()
        self._store(state, events[:, :-1], candidates)
        slots = events.any(dim=1).nonzero()[:, 0]
        finished = {}
        for slot, last in zip(slots.tolist(), events[slots, -1].tolist(), strict=True):
            if last or state.hypotheses[slot].is_done():
                finished[slot] = state.hypotheses[slot].best()
        if finished:
            sequences.active[list(finished)] = False
        live = live_candidates(has_eos, size)
        state.totals = candidates.totals.gather(1, live)
        state.log_probs = candidates.log_probs.gather(1, live)
        beam_indices = candidates.beam_indices.gather(1, live)
        sequences.reorder(beam_indices)
        sequences.append(candidates.tokens.gather(1, live))
        return SearchStep(beam_indices, finished)

    def _store(self, state: BeamState, is_stored: Tensor, candidates: Candidates) -> None:
        """Store the candidates in a mask (B, K), which is on the CPU."""
        indices = is_stored.nonzero().t()
        if indices.numel() == 0:
            return
        slots, ranks = indices.to(self.device)
        chosen = Candidates(*(part[slots, ranks] for part in candidates))
        prefixes = state.sequences.token_ids(slots, chosen.beam_indices)
        columns = (
            *indices.tolist(),
            *torch.stack((chosen.totals, chosen.log_probs)).tolist(),
            chosen.tokens.tolist(),
        )
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


@dataclass(slots=True)
class DiverseState(SearchState):
    """State of a diverse beam search, with a row for each group of each slot."""

    beam: BeamState
    penalties: Tensor  # (B * G, K / G) diversity penalties of each sequence so far


class DiverseBeamSearch(Search[BeamConfig, DiverseState]):
    """Diverse beam search (Vijayakumar et al. 2018): groups of a beam that repel each other.

    There are G beam searches of K / G sequences each, which take turns at every step.

    A group ranks a token lower by the diversity penalty for each time that an earlier group has it
    among its K / G best candidates of the same step, whether they end or not. Penalties count in
    later ranks of the sequence but not in its score, so hypotheses of all groups compare. A
    sentence is done when all groups are; equal hypotheses of several groups count once.
    """

    @cached_property
    def group_search(self) -> BeamSearch:
        """The search of one group, to which the groups of a sentence are sentences."""
        size = self.config.beam_size // self.config.num_beam_groups
        config = replace(self.config, beam_size=size, num_beam_groups=1)
        return BeamSearch(config, self.special_tokens, self.device, nbest=min(self.nbest, size))

    def rows(self, slots: Tensor) -> Tensor:
        groups = torch.arange(self.config.num_beam_groups, device=slots.device)
        return (slots[:, None] * len(groups) + groups).flatten()

    def start(self, requests: Sequence[Request]) -> DiverseState:
        num_groups = self.config.num_beam_groups
        beam = self.group_search.start([part for part in requests for _ in range(num_groups)])
        return DiverseState(beam, torch.zeros_like(beam.log_probs))

    def step(self, state: DiverseState, stepper: Stepper) -> SearchStep:
        sequences = state.beam.sequences
        num_groups = self.config.num_beam_groups
        last = sequences.last.view(-1, self.num_beams)
        logits = stepper.step(last).view(*sequences.last.shape, -1)
        candidates, penalties = self._candidates(state, logits)
        step = self.group_search.advance(state.beam, candidates)
        assert step.beam_indices is not None
        live = live_candidates(candidates.tokens == self.eos, sequences.last.shape[1])
        state.penalties = penalties.gather(1, live)
        first = torch.arange(0, self.num_beams, live.shape[1], device=self.device)[:, None]
        beam_indices = step.beam_indices.view(-1, num_groups, live.shape[1]) + first
        finished = {}
        slots = {row // num_groups for row in step.finished}
        lengths, active = (
            part.tolist() if slots else [] for part in (sequences.lengths, sequences.active)
        )
        for slot in slots:
            rows = range(slot * num_groups, (slot + 1) * num_groups)
            if not any(active[rows.start : rows.stop]):
                # Of equal hypotheses that of the group that was done last, the longest, counts.
                distinct = {
                    hypothesis.token_ids: hypothesis
                    for row in sorted(rows, key=lengths.__getitem__)
                    for hypothesis in state.beam.hypotheses[row].best()
                }
                finished[slot] = n_best(distinct.values(), self.config, self.nbest)
        return SearchStep(beam_indices.flatten(1), finished)

    def _candidates(self, state: DiverseState, logits: Tensor) -> tuple[Candidates, Tensor]:
        """Return the best continuations of each row, by logits (B * G, K / G, V).

        Their order counts diversity penalties, their totals do not; the penalties are returned too.
        """
        num_groups = self.config.num_beam_groups
        _, size, vocab_size = logits.shape
        next_tokens = self.group_search.processor(logits, state.beam.sequences)
        token_counts = torch.zeros((len(logits) // num_groups, vocab_size), device=self.device)
        parts = []
        for group in range(num_groups):
            rows = slice(group, None, num_groups)
            # Only penalized tokens can drop out of the best of a sequence.
            offered = NextTokens(*(part[rows] for part in next_tokens)).topk((2 + group) * size)
            tokens, scores, log_probs = offered  # (B, K / G, n)
            counts = token_counts.gather(1, tokens.flatten(1)).view(tokens.shape)
            penalties = state.penalties[rows, :, None] + self.config.diversity_penalty * counts
            totals = (state.beam.totals[rows, :, None] + (scores - penalties)).flatten(1)
            best, indices = totals.topk(min(2 * size, totals.shape[1]), dim=-1)
            penalty, token, log_prob = (
                part.flatten(1).gather(1, indices)
                for part in (penalties, tokens, state.beam.log_probs[rows, :, None] + log_probs)
            )
            parts.append((best + penalty, log_prob, indices // tokens.shape[2], token, penalty))
            is_active = state.beam.sequences.active[rows, None]
            is_selected = (best[:, :size] > -math.inf) & is_active
            token_counts.scatter_add_(1, token[:, :size], is_selected.float())
        *columns, penalty = (
            torch.stack(part, dim=1).flatten(0, 1) for part in zip(*parts, strict=True)
        )
        return Candidates(*columns), penalty
