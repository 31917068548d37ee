"""Diverse beam search (Vijayakumar et al. 2018): groups of a beam that keep apart."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.beam import BeamSearch, Continuations
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
from tformer_cli.search.search import SearchStep
from tformer_cli.search.stepper import Stepper
from tformer_cli.search.topk import TopK, offer


class DiverseBeamSearch:
    """G beam searches of K / G rows each, that take turns at every step.

    A group ranks a token lower by `diversity_penalty` for each time that a group before it has the
    token among its K / G best continuations of the same step, whether they end or not. A row keeps
    what it has lost, but its score does not count it, so the translations of all groups compare.
    A sentence is done when all its groups are; it has their translations, each of them once.
    """

    def __init__(
        self,
        config: BeamConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int = 1,
    ) -> None:
        """Set the rules.

        Args:
            config: beam size K, the number of groups G, their diversity, and the rules.
            special_tokens: start, end and suppressed ids.
            device: where the logits are.
            nbest: translations wanted of each sentence, at most K; fewer come where groups agree.
        """
        self.device = device
        self.num_kept = nbest if config.coverage_penalty == 0 else None
        self.num_beams = config.beam_size
        self.groups = [
            Group(config, special_tokens, device, nbest=nbest, num_before=number)
            for number in range(config.num_beam_groups)
        ]

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        for group in self.groups:
            group.start(requests)
        self.found: list[list[Hypothesis]] = [[] for _ in requests]
        self.num_at_work = [len(self.groups)] * len(requests)

    def insert(self, places: Tensor, requests: Sequence[Request]) -> None:
        """Begin these requests in places whose sentences are done."""
        for group in self.groups:
            group.insert(places, requests)
        for place in places.tolist():
            self.found[place], self.num_at_work[place] = [], len(self.groups)

    def select(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        for group in self.groups:
            group.select(places)
        self.found = [self.found[place] for place in places.tolist()]
        self.num_at_work = [self.num_at_work[place] for place in places.tolist()]

    def advance(self, stepper: Stepper) -> SearchStep:
        """Let each group go on, apart from those before it."""
        logits = stepper.step(torch.cat([group.rows.last for group in self.groups], dim=1))
        chosen = torch.zeros((len(logits), logits.shape[2]), device=self.device)
        size = self.num_beams // len(self.groups)
        beam_indices, ended = [], {}
        for number, group in enumerate(self.groups):
            first = number * size
            advance, chosen = group.keep_apart(logits[:, first : first + size], chosen)
            assert advance.beam_indices is not None
            beam_indices.append(first + advance.beam_indices)
            for place, hypotheses in advance.ended.items():
                self.found[place] += hypotheses
                self.num_at_work[place] -= 1
                if self.num_at_work[place] == 0:
                    ended[place] = self._best(place)
        return SearchStep(torch.cat(beam_indices, dim=1), ended)

    def _best(self, place: int) -> list[Hypothesis]:
        distinct = {one.token_ids: one for one in self.found[place]}
        return sorted(distinct.values(), key=lambda one: one.score, reverse=True)[: self.num_kept]


class Group(BeamSearch):
    """A beam search that ranks lower what the groups before it have chosen."""

    def __init__(
        self,
        config: BeamConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int,
        num_before: int,
    ) -> None:
        """Set the rules, as `DiverseBeamSearch` does; `num_before` groups come before this one."""
        size = config.beam_size // config.num_beam_groups
        own = replace(config, beam_size=size, num_beam_groups=1)
        super().__init__(own, special_tokens, device, nbest=min(nbest, size))
        self.diversity = config.diversity_penalty
        # Only tokens that lose can fall out of a row's best, and they are so many at most.
        self.num_offered = (2 + num_before) * size

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        self.lost = torch.zeros((len(requests), self.num_beams), device=self.device)
        super().start(requests)

    def select(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        super().select(places)
        self.lost = self.lost[places]

    def _begin(self, places: Tensor) -> None:
        super()._begin(places)
        self.lost[places] = 0.0

    def keep_apart(self, logits: Tensor, chosen: Tensor) -> tuple[SearchStep, Tensor]:
        """SearchStep, and return as well what has been chosen with this group's choice.

        Args:
            logits: (B, K / G, V).
            chosen: (B, V) how often the groups before this one have chosen each token.
        """
        self._chosen = self._chosen_with_own = chosen
        advance = self.take(logits)
        assert advance.beam_indices is not None
        self.lost = self._losses(advance.beam_indices, self.rows.last)
        return advance, self._chosen_with_own

    def _continuations(self, logits: Tensor) -> Continuations:
        best = offer(logits, self.rules, self.rows, self.num_offered)
        rows = torch.arange(self.num_beams, device=self.device)[:, None].expand(best.tokens.shape)
        losses = self._losses(rows.flatten(1), best.tokens.flatten(1)).view(best.tokens.shape)
        found = self._best_of(best._replace(scores=best.scores - losses))
        own, totals = found.tokens[:, : self.num_beams], found.totals[:, : self.num_beams]
        counts = (totals > -math.inf) & self.rows.active[:, None]
        self._chosen_with_own = self._chosen.scatter_add(1, own, counts.float())
        return found._replace(totals=found.totals + self._losses(found.beam_indices, found.tokens))

    def _best_of(self, offered: TopK) -> Continuations:
        """Return the 2K / G best of what all rows of a sentence are offered."""
        num_offered = offered.tokens.shape[2]
        totals = (self.totals[:, :, None] + offered.scores).flatten(1)
        log_probs = (self.log_probs[:, :, None] + offered.log_probs).flatten(1)
        best, places = totals.topk(min(2 * self.num_beams, totals.shape[1]), dim=-1)
        tokens = offered.tokens.flatten(1).gather(1, places)
        return Continuations(best, log_probs.gather(1, places), places // num_offered, tokens)

    def _losses(self, beam_indices: Tensor, tokens: Tensor) -> Tensor:
        """Return what rows with one more token have lost, (B, n).

        Args:
            beam_indices: (B, n) which row goes on.
            tokens: (B, n) its new token.
        """
        return self.lost.gather(1, beam_indices) + self.diversity * self._chosen.gather(1, tokens)
