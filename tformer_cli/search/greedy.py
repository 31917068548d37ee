"""Greedy search: the best token at each step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.search.logits_processors import LogitsProcessor, RequestState
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
from tformer_cli.search.state import SearchState, SearchStep, Sequences
from tformer_cli.search.stepper import Stepper


@dataclass(slots=True)
class GreedyState(SearchState):
    """State of a greedy search; totals (B, 2) are the sums of scores and of log probabilities."""

    requests: RequestState
    sequences: Sequences
    totals: Tensor


class GreedySearch:
    """One sequence per sentence; its score is the sum of the scores of its tokens.

    Without `scored` there are no scores, and logits are not normalized.
    """

    num_beams = 1

    def __init__(
        self,
        config: GreedyConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        scored: bool = True,
    ) -> None:
        self.special_tokens = special_tokens
        self.device = device
        self.scored = scored
        self.processor = LogitsProcessor(config, special_tokens, device)

    def start(self, requests: Sequence[Request]) -> GreedyState:
        """Return the state of a slot for each request."""
        return GreedyState(
            requests=self.processor.start(requests),
            sequences=Sequences.empty(len(requests), 1, self.special_tokens.bos, self.device),
            totals=torch.zeros((len(requests), 2), device=self.device),
        )

    def step(self, state: GreedyState, stepper: Stepper) -> SearchStep:
        """Append the best token to each sequence."""
        sequences, eos = state.sequences, self.special_tokens.eos
        tokens = self._best_tokens(state, stepper)
        sequences.append(tokens)
        is_last = sequences.lengths == state.requests.max_lengths
        slots = (sequences.active & ((tokens[:, 0] == eos) | is_last)).nonzero()[:, 0]
        if len(slots) == 0:
            return SearchStep()
        sequences.active[slots] = False
        totals = state.totals[slots] if self.scored else state.totals[slots] + math.nan
        finished = {}
        for slot, ids, (score, log_prob) in zip(
            slots.tolist(),
            sequences.token_ids(slots, torch.zeros_like(slots)),
            totals.tolist(),
            strict=True,
        ):
            is_finished = ids[-1] == eos
            token_ids = ids[:-1] if is_finished else ids
            finished[slot] = [Hypothesis(token_ids, log_prob, score, is_finished)]
        return SearchStep(None, finished)

    def _best_tokens(self, state: GreedyState, stepper: Stepper) -> Tensor:
        """Return the next token (B, 1) of each sequence, and add its score to the totals."""
        sequences = state.sequences
        if not (self.scored or self.processor.is_active(state.requests)):
            suppress = partial(self.processor.suppress, sequences=sequences)
            return stepper.argmax(sequences.last, suppress)
        logits = stepper.step(sequences.last)
        best = self.processor(logits, sequences, state.requests).topk(1)
        state.totals = state.totals + torch.cat((best.scores, best.log_probs), dim=-1)[:, 0]
        return best.tokens[:, 0]
