"""Greedy search: the best token at each step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.search.continuous_batching import Search
from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.search.state import SearchState, SearchStep, Sequences
from tformer_cli.search.stepper import Stepper


@dataclass(slots=True)
class GreedyState(SearchState):
    """State of a greedy search."""

    sequences: Sequences
    totals: Tensor  # (B, 2) sums of scores and of log probabilities


class GreedySearch(Search[GreedyConfig, GreedyState]):
    """One sequence per sentence; its score is the sum of the scores of its tokens.

    Where scores are not needed, logits are not normalized.
    """

    num_beams = 1

    def start(self, requests: Sequence[Request]) -> GreedyState:
        totals = torch.zeros((len(requests), 2), device=self.device)
        return GreedyState(self.processor.start(requests, self.num_beams), totals)

    def step(self, state: GreedyState, stepper: Stepper) -> SearchStep:
        sequences = state.sequences
        tokens = self._best_tokens(state, stepper)
        sequences.append(tokens)
        is_done = (tokens[:, 0] == self.eos) | (sequences.lengths == sequences.max_lengths)
        slots = (sequences.active & is_done).nonzero()[:, 0]
        if len(slots) == 0:
            return SearchStep()
        sequences.active[slots] = False
        totals = state.totals[slots] if self.scored else state.totals[slots] + math.nan
        token_ids = sequences.token_ids(slots, torch.zeros_like(slots))
        finished = {}
        for slot, ids, (score, log_prob) in zip(
            slots.tolist(), token_ids, totals.tolist(), strict=True
        ):
            has_eos = ids[-1] == self.eos
            finished[slot] = [Hypothesis(ids[:-1] if has_eos else ids, log_prob, score, has_eos)]
        return SearchStep(None, finished)

    def _best_tokens(self, state: GreedyState, stepper: Stepper) -> Tensor:
        """Return the next token (B, 1) of each sequence, and add its score to the totals."""
        sequences = state.sequences
        if not (self.scored or self.processor.is_active(sequences)):
            suppress = partial(self.processor.suppress, sequences=sequences)
            return stepper.argmax(sequences.last, suppress)
        best = self.processor(stepper.step(sequences.last), sequences).topk(1)
        state.totals = state.totals + torch.cat((best.scores, best.log_probs), dim=-1)[:, 0]
        return best.tokens[:, 0]
