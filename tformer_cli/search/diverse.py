"""Diverse beam search (Vijayakumar et al. 2018): groups of a beam that repel each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.beam import BeamSearch, BeamState, Candidates
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
from tformer_cli.search.state import SearchState, SearchStep, by_score
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import TopK


@dataclass(slots=True)
class GroupState(SearchState):
    """State of a group; penalties (B, K / G) are those of each sequence so far."""

    beam: BeamState
    penalties: Tensor


@dataclass(slots=True)
class DiverseState(SearchState):
    """State of all groups.

    Attributes:
        groups: state of each group.
        hypotheses: those of the groups of a slot that are done.
        num_running: groups of a slot that are not done.
    """

    groups: tuple[GroupState, ...]
    hypotheses: list[list[Hypothesis]]
    num_running: list[int]


class DiverseBeamSearch:
    """G beam searches of K / G sequences each, which take turns at every step.

    A group ranks a token lower by the diversity penalty for each time that an earlier group has it
    among its K / G best candidates of the same step, whether they end or not. Penalties count in
    later ranks of the sequence but not in its score, so hypotheses of all groups compare. A
    sentence is done when all groups are; equal hypotheses of several groups count once.
    """

    def __init__(
        self,
        config: BeamConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int = 1,
    ) -> None:
        self.device = device
        self.num_kept = nbest if config.coverage_penalty == 0 else None
        self.num_beams = config.beam_size
        self.groups = [
            BeamGroup(config, special_tokens, device, nbest=nbest, index=index)
            for index in range(config.num_beam_groups)
        ]

    def start(self, requests: Sequence[Request]) -> DiverseState:
        """Return the state of a slot for each request."""
        return DiverseState(
            groups=tuple(group.start_group(requests) for group in self.groups),
            hypotheses=[[] for _ in requests],
            num_running=[len(self.groups)] * len(requests),
        )

    def step(self, state: DiverseState, stepper: Stepper) -> SearchStep:
        """Continue each group, with penalties for the tokens of those before it."""
        last = torch.cat([group.beam.sequences.last for group in state.groups], dim=1)
        logits = stepper.step(last)
        token_counts = torch.zeros((len(logits), logits.shape[2]), device=self.device)
        beam_indices, finished = [], {}
        size = self.num_beams // len(self.groups)
        for index, (group, group_state) in enumerate(zip(self.groups, state.groups, strict=True)):
            first = index * size
            own_logits = logits[:, first : first + size]
            step, token_counts = group.step_group(group_state, own_logits, token_counts)
            assert step.beam_indices is not None
            beam_indices.append(first + step.beam_indices)
            for slot, hypotheses in step.finished.items():
                state.hypotheses[slot] += hypotheses
                state.num_running[slot] -= 1
                if state.num_running[slot] == 0:
                    finished[slot] = self._best(state.hypotheses[slot])
        return SearchStep(torch.cat(beam_indices, dim=1), finished)

    def _best(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        distinct = {hypothesis.token_ids: hypothesis for hypothesis in hypotheses}
        return by_score([*distinct.values()])[: self.num_kept]


class BeamGroup(BeamSearch):
    """Beam search of a group, which is penalized for the tokens of `index` groups before it."""

    def __init__(
        self,
        config: BeamConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int,
        index: int,
    ) -> None:
        size = config.beam_size // config.num_beam_groups
        own = replace(config, beam_size=size, num_beam_groups=1)
        super().__init__(own, special_tokens, device, nbest=min(nbest, size))
        self.diversity = config.diversity_penalty
        # Only penalized tokens can drop out of the best of a sequence; there are `index * size`.
        self.num_offered = (2 + index) * size

    def start_group(self, requests: Sequence[Request]) -> GroupState:
        """Return the state of a slot for each request."""
        beam = self.start(requests)
        return GroupState(beam, torch.zeros_like(beam.log_probs))

    def step_group(
        self, state: GroupState, logits: Tensor, token_counts: Tensor
    ) -> tuple[SearchStep, Tensor]:
        """Continue the sequences of the group.

        Args:
            state: of the group.
            logits: (B, K / G, V) of the group.
            token_counts: (B, V) how often earlier groups have selected each token at this step.

        Returns:
            The step, and the counts with the tokens of this group.
        """
        sequences = state.beam.sequences
        best = self.processor(logits, sequences, state.beam.requests).topk(self.num_offered)
        beams = torch.arange(self.num_beams, device=self.device)[:, None]
        beams = beams.expand(best.tokens.shape).flatten(1)
        penalties = self._penalties(state, beams, best.tokens.flatten(1), token_counts)
        scores = best.scores - penalties.view(best.tokens.shape)
        candidates = self._best_offered(state.beam, best._replace(scores=scores))
        is_selected = candidates.totals[:, : self.num_beams] > -math.inf
        is_selected &= sequences.active[:, None]
        own_tokens = candidates.tokens[:, : self.num_beams]
        new_counts = token_counts.scatter_add(1, own_tokens, is_selected.float())
        penalties = self._penalties(state, candidates.beam_indices, candidates.tokens, token_counts)
        step = self._advance(state.beam, candidates._replace(totals=candidates.totals + penalties))
        assert step.beam_indices is not None
        state.penalties = self._penalties(state, step.beam_indices, sequences.last, token_counts)
        return step, new_counts

    def _best_offered(self, state: BeamState, offered: TopK) -> Candidates:
        """Return the 2K / G best of the tokens offered to all sequences of a slot."""
        totals = (state.totals[:, :, None] + offered.scores).flatten(1)
        log_probs = (state.log_probs[:, :, None] + offered.log_probs).flatten(1)
        best, indices = totals.topk(min(2 * self.num_beams, totals.shape[1]), dim=-1)
        tokens = offered.tokens.flatten(1).gather(1, indices)
        beam_indices = indices // offered.tokens.shape[2]
        return Candidates(best, log_probs.gather(1, indices), beam_indices, tokens)

    def _penalties(
        self, state: GroupState, beam_indices: Tensor, tokens: Tensor, token_counts: Tensor
    ) -> Tensor:
        """Return the penalties (B, n) of sequences (B, n) continued by tokens (B, n)."""
        new = self.diversity * token_counts.gather(1, tokens)
        return state.penalties.gather(1, beam_indices) + new
