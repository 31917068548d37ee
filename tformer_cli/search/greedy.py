"""Greedy search: the best token at each step."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
from tformer_cli.search.rows import Sequences
from tformer_cli.search.rules import LogitsProcessor
from tformer_cli.search.search import SearchStep
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import offer


class GreedySearch:
    """One row for each sentence; its score is the sum of those of its tokens."""

    num_beams = 1

    def __init__(
        self,
        config: GreedyConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        scored: bool = True,
    ) -> None:
        """Set the rules.

        Args:
            config: limits, penalties and bans.
            special_tokens: start, end and suppressed ids.
            device: where the logits are.
            scored: whether scores are wanted; without them rows are not normalised for nothing.
        """
        self.special_tokens = special_tokens
        self.device = device
        self.rules = LogitsProcessor(config, special_tokens, device)
        self.scored = scored

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        self.rules.start(requests)
        self.rows = Sequences(len(requests), 1, self.special_tokens.bos, self.device)
        # (B, 2): the sums of scores and of log probabilities.
        self.totals = torch.zeros((len(requests), 2), device=self.device)

    def insert(self, places: Tensor, requests: Sequence[Request]) -> None:
        """Begin these requests in places whose sentences are done."""
        self.rules.insert(places, requests)
        self.rows.insert(places)
        self.totals[places] = 0.0

    def select(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        self.rules.select(places)
        self.rows.select(places)
        self.totals = self.totals[places]

    def advance(self, stepper: Stepper) -> SearchStep:
        """Let each row grow by its best token."""
        rows = self.rows
        tokens = self._best(stepper)
        rows.append(tokens)
        is_finished = tokens[:, 0] == self.special_tokens.eos
        leaving = rows.active & (is_finished | (rows.lengths == self.rules.most))
        places = leaving.nonzero()[:, 0]
        if len(places) == 0:
            return SearchStep(None, {})
        rows.active[places] = False
        totals = self.totals[places] if self.scored else self.totals[places] + math.nan
        ended = {}
        for place, ids, (score, log_prob) in zip(
            places.tolist(),
            rows.written(places, torch.zeros_like(places)),
            totals.tolist(),
            strict=True,
        ):
            finished = ids[-1] == self.special_tokens.eos
            hypothesis = Hypothesis(ids[:-1] if finished else ids, log_prob, score, finished)
            ended[place] = [hypothesis]
        return SearchStep(None, ended)

    def _best(self, stepper: Stepper) -> Tensor:
        suppress_tokens = partial(self.rules.suppress_tokens, rows=self.rows)
        if not (self.scored or self.rules.has_effect):
            return stepper.best(self.rows.last, suppress_tokens)
        logits = stepper.step(self.rows.last)
        suppress_tokens(logits)
        best = offer(logits, self.rules, self.rows, 1)
        self.totals = self.totals + torch.cat((best.scores, best.log_probs), dim=-1)[:, 0]
        return best.tokens[:, 0]
