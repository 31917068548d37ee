"""Greedy search: the best token at each step."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.search.hypothesis import Hypothesis
from tformer_cli.search.logits_processors import TokenRoles
from tformer_cli.search.request import Request
from tformer_cli.search.rows import Rows
from tformer_cli.search.rules import Rules
from tformer_cli.search.search import Advance
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import offer


class GreedySearch:
    """One row for each sentence; its score is the sum of those of its tokens."""

    num_rows = 1

    def __init__(
        self, config: GreedyConfig, roles: TokenRoles, device: torch.device, *, scored: bool = True
    ) -> None:
        """Set the rules.

        Args:
            config: limits, penalties and bans.
            roles: start, end and suppressed ids.
            device: where the logits are.
            scored: whether scores are wanted; without them rows are not normalised for nothing.
        """
        self.roles = roles
        self.device = device
        self.rules = Rules(config, roles, device)
        self.scored = scored

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        self.rules.start(requests)
        self.rows = Rows(len(requests), 1, self.roles.start_id, self.device)
        # (B, 2): the sums of scores and of log probabilities.
        self.totals = torch.zeros((len(requests), 2), device=self.device)

    def admit(self, places: Tensor, requests: Sequence[Request]) -> None:
        """Begin these requests in places whose sentences are done."""
        self.rules.admit(places, requests)
        self.rows.admit(places)
        self.totals[places] = 0.0

    def keep(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        self.rules.keep(places)
        self.rows.keep(places)
        self.totals = self.totals[places]

    def advance(self, stepper: Stepper) -> Advance:
        """Let each row grow by its best token."""
        rows = self.rows
        tokens = self._best(stepper)
        rows.append(tokens)
        is_finished = tokens[:, 0] == self.roles.end_id
        leaving = rows.active & (is_finished | (rows.lengths == self.rules.most))
        places = leaving.nonzero()[:, 0]
        if len(places) == 0:
            return Advance(None, {})
        rows.active[places] = False
        totals = self.totals[places] if self.scored else self.totals[places] + math.nan
        ended = {}
        for place, ids, (score, log_prob) in zip(
            places.tolist(),
            rows.written(places, torch.zeros_like(places)),
            totals.tolist(),
            strict=True,
        ):
            finished = ids[-1] == self.roles.end_id
            hypothesis = Hypothesis(ids[:-1] if finished else ids, log_prob, score, finished)
            ended[place] = [hypothesis]
        return Advance(None, ended)

    def _best(self, stepper: Stepper) -> Tensor:
        forbid = partial(self.rules.forbid, rows=self.rows)
        if not (self.scored or self.rules.has_effect):
            return stepper.best(self.rows.last, forbid)
        logits = stepper.step(self.rows.last)
        forbid(logits)
        best = offer(logits, self.rules, self.rows, 1)
        self.totals = self.totals + torch.cat((best.scores, best.log_probs), dim=-1)[:, 0]
        return best.tokens[:, 0]
