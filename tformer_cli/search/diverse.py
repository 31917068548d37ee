"""Diverse beam search (Vijayakumar et al. 2018): groups of a beam that repel each other."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.beam import BeamSearch, BeamState, Candidates, live_candidates
from tformer_cli.search.continuous_batching import Search
from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.search.state import SearchState, SearchStep, by_score
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import NextTokens


@dataclass(slots=True)
class DiverseState(SearchState):
    """State of a diverse beam search, with a row for each group of each slot."""

    beam: BeamState
    penalties: Tensor  # (B * G, K / G) diversity penalties of each sequence so far


class DiverseBeamSearch(Search[BeamConfig, DiverseState]):
    """G beam searches of K / G sequences each, which take turns at every step.

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
        sequences, num_groups = state.beam.sequences, self.config.num_beam_groups
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
        for slot in {row // num_groups for row in step.finished}:
            rows = range(slot * num_groups, (slot + 1) * num_groups)
            if not sequences.active[rows.start : rows.stop].any():
                finished[slot] = self._best(state, rows)
        return SearchStep(beam_indices.flatten(1), finished)

    def _candidates(self, state: DiverseState, logits: Tensor) -> tuple[Candidates, Tensor]:
        """Return the best continuations of each row, by logits (B * G, K / G, V).

        Their order counts diversity penalties, their totals do not; the penalties are returned too.
        """
        num_groups, (_, size, vocab_size) = self.config.num_beam_groups, logits.shape
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

    def _best(self, state: DiverseState, rows: Iterable[int]) -> list[Hypothesis]:
        """Return the best hypotheses of the groups in some rows, which are done."""
        # Of equal ones that of the group that was done last counts, which is the longest.
        lengths = state.beam.sequences.lengths.tolist()
        distinct = {
            hypothesis.token_ids: hypothesis
            for row in sorted(rows, key=lengths.__getitem__)
            for hypothesis in state.beam.hypotheses[row].best()
        }
        best = by_score(distinct.values())
        return best[: self.nbest] if self.config.coverage_penalty == 0 else best
