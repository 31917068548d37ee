"""Beam search for hypotheses that must contain given phrases."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.beam import BeamHypotheses, BeamSearch, BeamState, Candidates
from tformer_cli.search.constraints import Candidate, ConstrainedBeam
from tformer_cli.search.request import Hypothesis, Request
from tformer_cli.search.state import SearchStep
from tformer_cli.search.topk import NextTokens, topk_tokens


class ConstrainedHypotheses(BeamHypotheses):
    """Hypotheses stored for a sentence with required phrases, and its live beam."""

    def __init__(self, config: BeamConfig, nbest: int, beam: ConstrainedBeam) -> None:
        super().__init__(config, nbest)
        self.beam = beam

    def add(self, hypothesis: Hypothesis, rank: int) -> None:
        """Store a hypothesis; without all phrases it counts as unfinished."""
        is_complete = self.beam.constraints.reached(hypothesis.token_ids).is_complete
        finished = hypothesis.finished and is_complete
        super().add(replace(hypothesis, finished=finished), rank)

    def is_done(self) -> bool:
        """Return False: `is_settled` decides when the live sequences of the step are known."""
        return False

    def is_settled(self, best_live_score: float) -> bool:
        """Return whether the search of the sentence is done, by the score of its best sequence."""
        if best_live_score == -math.inf:
            return True
        scores = [hypothesis.score for hypothesis in self.stored if hypothesis.finished]
        if self.beam.is_over:
            return len(scores) >= self.nbest
        num_better = sum(score >= best_live_score for score in scores)
        return num_better >= self.nbest and super().is_done()

    def best(self) -> list[Hypothesis]:
        """Return the best hypotheses among those with most phrases."""
        reached = self.beam.constraints.reached
        num_met = [reached(hypothesis.token_ids).num_met for hypothesis in self.stored]
        self.stored = [
            hypothesis
            for hypothesis, count in zip(self.stored, num_met, strict=True)
            if count == max(num_met)
        ]
        return super().best()


class ConstrainedBeamSearch(BeamSearch):
    """Beam search with dynamic beam allocation, for requests with and without required phrases.

    A sequence ends only with all phrases of its request. Candidates are the best continuations of
    each sequence and those that continue a phrase; `ConstrainedBeam` allocates the beam to them.

    Sequences that write the phrases at once end early, with low scores. So a sentence is done when,
    besides the conditions of `BeamSearch`, no live sequence has a better score than the `nbest`
    best hypotheses; or when no sequence may wait any more and enough have ended. At the length
    limit sequences with most phrases win; incomplete ones count as unfinished.
    """

    def _hypotheses(self, request: Request) -> BeamHypotheses:
        if not request.required:
            return super()._hypotheses(request)
        enough = max(self.nbest, self.config.enough)
        beam = ConstrainedBeam(request.required, self.num_beams, enough, self.eos)
        return ConstrainedHypotheses(self.config, self.nbest, beam)

    def _constrained(self, state: BeamState) -> dict[int, ConstrainedHypotheses]:
        """Return the hypotheses of the active slots with required phrases."""
        active = state.sequences.active.tolist()
        return {
            slot: hypotheses
            for slot, hypotheses in enumerate(state.hypotheses)
            if isinstance(hypotheses, ConstrainedHypotheses) and active[slot]
        }

    def advance(self, state: BeamState, candidates: Candidates) -> SearchStep:
        step = super().advance(state, candidates)
        constrained = self._constrained(state)
        if not constrained:
            return step
        assert step.beam_indices is not None
        slots = torch.tensor(list(constrained), device=self.device)
        lengths = state.sequences.lengths[slots].tolist()
        totals = state.totals[slots].amax(dim=1).tolist()
        beam_indices = step.beam_indices[slots].tolist()
        tokens = state.sequences.last[slots].tolist()
        finished = dict(step.finished)
        for (slot, hypotheses), length, total, *continued in zip(
            constrained.items(), lengths, totals, beam_indices, tokens, strict=True
        ):
            hypotheses.beam.append(*continued)
            if hypotheses.is_settled(total / length**self.config.length_penalty):
                finished[slot] = hypotheses.best()
                state.sequences.active[slot] = False
        return SearchStep(step.beam_indices, finished)

    def _candidates(self, state: BeamState, next_tokens: NextTokens) -> Candidates:
        candidates = super()._candidates(state, next_tokens)
        constrained = self._constrained(state)
        if not constrained:
            return candidates
        beams = [hypotheses.beam for hypotheses in constrained.values()]
        slots = torch.tensor(list(constrained), device=self.device)
        tokens, totals, log_probs = self._offered(state, next_tokens, slots, beams)
        is_last = (state.sequences.lengths + 1 == state.sequences.max_lengths)[slots]
        parts = (tokens.tolist(), totals.tolist(), log_probs.tolist())
        chosen = [
            beam.allocate(beam.candidates(*offered), is_last=last)
            for beam, last, *offered in zip(beams, is_last.tolist(), *parts, strict=True)
        ]
        self._overwrite(candidates, slots, chosen)
        return candidates

    def _offered(
        self,
        state: BeamState,
        next_tokens: NextTokens,
        slots: Tensor,
        beams: Sequence[ConstrainedBeam],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens (B', K, n) that may continue the sequences, with totals and log probs."""
        scores, log_probs, norms = next_tokens
        norms = norms[slots][:, :, None]
        best = topk_tokens(scores[slots].flatten(0, 1), 2 * self.num_beams)[1]
        phrases = self._phrase_tokens(beams)
        tokens = torch.cat((best.view(*norms.shape[:2], -1), phrases), dim=2)
        index = (slots[:, None, None], torch.arange(self.num_beams, device=self.device)[:, None])
        before = state.log_probs[slots][:, :, None]
        totals = state.totals[slots][:, :, None] + (scores[*index, tokens] - norms)
        sums = before + (log_probs[*index, tokens] - norms)
        # A sequence that ends without all phrases counts as unfinished, so EOS does not count.
        is_complete = torch.tensor(
            [[beam_state.is_complete for beam_state in beam.states] for beam in beams],
            device=self.device,
        )
        is_early = (tokens == self.eos) & ~is_complete[:, :, None]
        return tokens, totals, torch.where(is_early, before, sums)

    def _phrase_tokens(self, beams: Sequence[ConstrainedBeam]) -> Tensor:
        """Return the tokens (B', K, n) that continue phrases, padded with BOS (suppressed)."""
        tokens = [[state.next_tokens for state in beam.states] for beam in beams]
        width = max(len(part) for parts in tokens for part in parts)
        padding = [self.bos] * width
        padded = [[[*part, *padding[len(part) :]] for part in parts] for parts in tokens]
        return torch.tensor(padded, dtype=torch.long, device=self.device)

    def _overwrite(
        self, candidates: Candidates, slots: Tensor, chosen: Sequence[Sequence[Candidate]]
    ) -> None:
        """Replace the candidates of these slots (B') by the chosen ones."""
        width = candidates.totals.shape[1]
        nothing = (-math.inf, -math.inf, 0, self.bos)
        padded = [
            [*(candidate[:4] for candidate in part[:width]), *[nothing] * (width - len(part))]
            for part in chosen
        ]
        for index, member in enumerate(candidates):
            values = [[candidate[index] for candidate in part] for part in padded]
            member[slots] = torch.tensor(values, dtype=member.dtype, device=self.device)
