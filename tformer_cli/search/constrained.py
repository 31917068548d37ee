"""Beam search for translations that must contain given phrases."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.allocation import Candidate, ConstrainedBeam
from tformer_cli.search.beam import BeamSearch, Continuations, best_continuations
from tformer_cli.search.request import Hypothesis, Request, SpecialTokens
from tformer_cli.search.search import SearchStep
from tformer_cli.search.topk import ranked, topk_tokens


class ConstrainedBeamSearch(BeamSearch):
    """Beam search whose rows are shared out by how far they have come with required phrases.

    A row ends only when it has all phrases of its request. Besides the best continuations of each
    row those are looked at that bring it forward with a phrase; `allocation` says which are taken.

    Rows that write the phrases at once end early, and badly. So a sentence is done when, besides
    what `BeamSearch` asks for, no live row has a better score than the `nbest` best translations
    found; or when no row waits any more and enough have ended. At the length limit those with most
    phrases win; if they lack one, they count as not finished.

    Requests without phrases are searched for as by `BeamSearch`.
    """

    def __init__(
        self,
        config: BeamConfig,
        special_tokens: SpecialTokens,
        device: torch.device,
        *,
        nbest: int = 1,
    ) -> None:
        """Set the rules, as `BeamSearch` does."""
        super().__init__(config, special_tokens, device, nbest=nbest)
        self.constrained: list[ConstrainedBeam | None] = []

    def start(self, requests: Sequence[Request]) -> None:
        """Begin with a place for each request."""
        super().start(requests)
        self.constrained = [self._begun(request) for request in requests]

    def insert(self, places: Tensor, requests: Sequence[Request]) -> None:
        """Begin these requests in places whose sentences are done."""
        super().insert(places, requests)
        for place, request in zip(places.tolist(), requests, strict=True):
            self.constrained[place] = self._begun(request)

    def select(self, places: Tensor) -> None:
        """Keep these places, in this order."""
        super().select(places)
        self.constrained = [self.constrained[place] for place in places.tolist()]

    def _begun(self, request: Request) -> ConstrainedBeam | None:
        if not request.required:
            return None
        return ConstrainedBeam(
            request.required, self.num_beams, self.enough, self.special_tokens.eos
        )

    def take(self, logits: Tensor) -> SearchStep:
        """Let the chosen continuations take the places of the live rows, as `advance` does."""
        advance = super().take(logits)
        at_work = self._at_work()
        if not at_work:
            return advance
        assert advance.beam_indices is not None
        places = torch.tensor(list(at_work), device=self.device)
        beam_indices, tokens = (
            advance.beam_indices[places].tolist(),
            self.rows.last[places].tolist(),
        )
        best_totals = self.totals[places].amax(dim=1).tolist()
        ended = dict(advance.ended)
        for (place, rows), best_total, *taken in zip(
            at_work.items(), best_totals, beam_indices, tokens, strict=True
        ):
            rows.follow(*taken)
            if self._is_settled(place, rows, best_total):
                ended[place] = self._best(place)
                self.rows.active[place] = False
        return SearchStep(advance.beam_indices, ended)

    def _at_work(self) -> dict[int, ConstrainedBeam]:
        """Return the rows of the active places with phrases."""
        active = self.rows.active.tolist()
        return {
            place: rows
            for place, rows in enumerate(self.constrained)
            if rows is not None and active[place]
        }

    def _continuations(self, logits: Tensor) -> Continuations:
        at_work, count = self._at_work(), 2 * self.num_beams
        if not at_work:
            return super()._continuations(logits)
        scores, log_probs, norms = ranked(logits, self.rules, self.rows)
        before = (self.totals, self.log_probs)
        found = best_continuations(before, scores, log_probs, norms, count)
        places = torch.tensor(list(at_work), device=self.device)
        off = norms[places][:, :, None]
        best = topk_tokens(scores[places].flatten(0, 1), count)[1].view(*off.shape[:2], -1)
        tokens = torch.cat((best, self._wanted(at_work)), dim=2)
        index = (places[:, None, None], torch.arange(self.num_beams, device=self.device)[:, None])
        totals = self.totals[places][:, :, None] + (scores[*index, tokens] - off)
        sums = self.log_probs[places][:, :, None] + (log_probs[*index, tokens] - off)
        is_last = (self.rows.lengths + 1 == self.rules.most)[places]
        parts = (tokens.tolist(), totals.tolist(), sums.tolist())
        taken = [
            rows.chosen(rows.candidates(*offered), is_last=last)
            for rows, last, *offered in zip(at_work.values(), is_last.tolist(), *parts, strict=True)
        ]
        self._replace(found, places, taken)
        return found

    def _wanted(self, at_work: dict[int, ConstrainedBeam]) -> Tensor:
        """Return the tokens that bring rows forward, (B', K, n), filled up with the start token.

        The start token never comes.
        """
        wanted = [[one.wanted for one in rows.progress] for rows in at_work.values()]
        most = max(len(tokens) for rows in wanted for tokens in rows)
        filling = [self.special_tokens.bos] * most
        filled = [[[*tokens, *filling[len(tokens) :]] for tokens in rows] for rows in wanted]
        return torch.tensor(filled, dtype=torch.long, device=self.device)

    def _replace(
        self, found: Continuations, places: Tensor, taken: Sequence[Sequence[Candidate]]
    ) -> None:
        """Write what is taken in these places (B',) over what a plain beam would take there."""
        width = found.totals.shape[1]
        nothing = (-math.inf, -math.inf, 0, self.special_tokens.bos)
        filled = [
            [*(one[:4] for one in candidates[:width]), *[nothing] * (width - len(candidates))]
            for candidates in taken
        ]
        for member, part in enumerate(found):
            values = [[one[member] for one in row] for row in filled]
            part[places] = torch.tensor(values, dtype=part.dtype, device=self.device)

    def _judged(self, place: int, origin: int, one: Hypothesis) -> Hypothesis:
        rows = self.constrained[place]
        if rows is None or not one.finished or rows.constraints.reached(one.token_ids).is_whole:
            return one
        # It could do nothing else than end; the end token does not count.
        return replace(one, log_prob=float(self.log_probs[place, origin]), finished=False)

    def _is_done(self, place: int) -> bool:
        # Of a place with phrases `take` decides, when it is known which rows live on.
        return self.constrained[place] is None and super()._is_done(place)

    def _is_settled(self, place: int, rows: ConstrainedBeam, best_total: float) -> bool:
        """Say whether a place with phrases is done, while its best live row has this total."""
        if best_total == -math.inf:
            return True
        best_live = best_total / int(self.rows.lengths[place]) ** self.config.length_penalty
        scores = [one.score for one in self.stored[place] if one.finished]
        if rows.is_over:
            return len(scores) >= self.nbest
        num_good = sum(score >= best_live for score in scores)
        return num_good >= self.nbest and super()._is_done(place)

    def _best(self, place: int) -> list[Hypothesis]:
        rows = self.constrained[place]
        if rows is None:
            return super()._best(place)
        reached = [rows.constraints.reached(one.token_ids) for one in self.stored[place]]
        most = max(progress.num_met for progress in reached)
        self.stored[place] = [
            one
            for one, progress in zip(self.stored[place], reached, strict=True)
            if progress.num_met == most
        ]
        return super()._best(place)
