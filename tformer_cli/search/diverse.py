"""Diverse beam search (Vijayakumar et al. 2018): groups of a beam that repel each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.beam import BeamSearch, BeamState, Candidates
from tformer_cli.search.continuous_batching import Search
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
from tformer_cli.search.state import SearchState, SearchStep, by_score
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import TopK


@dataclass(slots=True)
class GroupState(SearchState):
    """State of a group."""

    beam: BeamState
    penalties: Tensor  # (B, K / G) diversity penalties of each sequence so far


@dataclass(slots=True)
class DiverseState(SearchState):
    """State of all groups."""

    groups: tuple[GroupState, ...]
    hypotheses: list[list[Hypothesis]]  # of the groups of a slot that are done
    num_running: list[int]  # groups of a slot that are not


class DiverseBeamSearch(Search[BeamConfig, DiverseState]):
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
        scored: bool = True,
    ) -> None:
        super().__init__(config, special_tokens, device, nbest=nbest, scored=scored)
        self.size = config.beam_size // config.num_beam_groups
        own = replace(config, beam_size=self.size, num_beam_groups=1)
        self.search = BeamSearch(own, special_tokens, device, nbest=min(nbest, self.size))

    def start(self, requests: Sequence[Request]) -> DiverseState:
        num_groups = self.config.num_beam_groups
        beams = [self.search.start(requests) for _ in range(num_groups)]
        groups = tuple(GroupState(beam, torch.zeros_like(beam.log_probs)) for beam in beams)
        return DiverseState(groups, [[] for _ in requests], [num_groups] * len(requests))

    def step(self, state: DiverseState, stepper: Stepper) -> SearchStep:
        last = torch.cat([group.beam.sequences.last for group in state.groups], dim=1)
        logits = stepper.step(last)
        token_counts = torch.zeros((len(logits), logits.shape[2]), device=self.device)
        beam_indices, finished = [], {}
        for index, group in enumerate(state.groups):
            first = index * self.size
            # Only penalized tokens can drop out of the best of a sequence.
            num_offered = 2 * self.size + first
            own_logits = logits[:, first : first + self.size]
            offered = self.search.processor(own_logits, group.beam.sequences).topk(num_offered)
            step, token_counts = self._step_group(group, offered, token_counts)
            assert step.beam_indices is not None
            beam_indices.append(first + step.beam_indices)
            for slot, hypotheses in step.finished.items():
                state.hypotheses[slot] += hypotheses
                state.num_running[slot] -= 1
                if state.num_running[slot] == 0:
                    finished[slot] = self._best(state.hypotheses[slot])
        return SearchStep(torch.cat(beam_indices, dim=1), finished)

    def _step_group(
        self, group: GroupState, offered: TopK, token_counts: Tensor
    ) -> tuple[SearchStep, Tensor]:
        """Continue the sequences of a group by some of the tokens offered.

        `token_counts` (B, V) are how often earlier groups have selected each token at this step;
        returned as well are the counts with the tokens of this group.
        """
        sequences = group.beam.sequences

        def penalties(beams: Tensor, tokens: Tensor) -> Tensor:
            """Return the penalties (B, n) of sequences (B, n) continued by tokens (B, n)."""
            new = self.config.diversity_penalty * token_counts.gather(1, tokens)
            return group.penalties.gather(1, beams) + new

        tokens = offered.tokens.flatten(1)
        beams = torch.arange(self.size, device=self.device)[:, None].expand(offered.tokens.shape)
        penalty = penalties(beams.flatten(1), tokens).view(offered.tokens.shape)
        totals = (group.beam.totals[:, :, None] + (offered.scores - penalty)).flatten(1)
        log_probs = (group.beam.log_probs[:, :, None] + offered.log_probs).flatten(1)
        best, indices = totals.topk(min(2 * self.size, totals.shape[1]), dim=-1)
        beams, tokens = indices // offered.tokens.shape[2], tokens.gather(1, indices)
        is_selected = (best[:, : self.size] > -math.inf) & sequences.active[:, None]
        new_counts = token_counts.scatter_add(1, tokens[:, : self.size], is_selected.float())
        unpenalized = best + penalties(beams, tokens)
        candidates = Candidates(unpenalized, log_probs.gather(1, indices), beams, tokens)
        step = self.search.advance(group.beam, candidates)
        assert step.beam_indices is not None
        group.penalties = penalties(step.beam_indices, sequences.last)
        return step, new_counts

    def _best(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        distinct = {hypothesis.token_ids: hypothesis for hypothesis in hypotheses}
        return by_score(distinct.values())[
            : self.nbest if self.config.coverage_penalty == 0 else None
        ]
