"""Dynamic beam allocation (Post and Vilar 2018): which rows of a beam wait, and which go ahead."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tformer_cli.search.constraints import Constraints, ConstraintState, Phrase


class Candidate(NamedTuple):
    """A row with one more token.

    Attributes:
        total: sum of its scores.
        log_prob: sum of its log probabilities.
        origin: which row 0..K-1 goes on.
        token: its new token.
        progress: how far it has come with the phrases.
    """

    total: float
    log_prob: float
    origin: int
    token: int
    progress: ConstraintState


class ConstrainedBeam:
    """The K rows of one sentence, and how far each has come with its phrases.

    Rows wait for a good place for a phrase only as long as a search without phrases would go on:
    until `enough` rows would have ended, had they been allowed to. What is written beyond that is
    babble, so from then on every row goes ahead with what it lacks.

    Attributes:
        constraints: the phrases.
        progress: of each row.
        is_over: whether `enough` rows have ended since the others wait no more.
    """

    def __init__(self, phrases: Sequence[Phrase], size: int, enough: int, eos: int) -> None:
        """Begin with K empty rows.

        Args:
            phrases: what the translation must contain.
            size: K.
            enough: rows that end before a search without phrases is done.
            eos: what a finished row ends with.
        """
        self.constraints = Constraints(phrases)
        self.progress = [self.constraints.start] * size
        self.is_over = False
        self._size, self._enough, self._eos = size, enough, eos
        self._num_ends = 0
        self._may_wait = True

    def follow(self, beam_indices: Sequence[int], tokens: Sequence[int]) -> None:
        """Let row k go on from row beam_indices[k] by a token."""
        self.progress = [
            self.progress[origin].after(token)
            for origin, token in zip(beam_indices, tokens, strict=True)
        ]

    def candidates(
        self,
        tokens: Sequence[Sequence[int]],
        totals: Sequence[Sequence[float]],
        log_probs: Sequence[Sequence[float]],
    ) -> list[Candidate]:
        """Return the possible continuations of all rows, best first.

        Args:
            tokens: what each row may go on with; a token may come twice.
            totals: sums of scores with these tokens.
            log_probs: sums of log probabilities with them.
        """
        found = [
            Candidate(total, log_prob, origin, token, progress.after(token))
            for origin, progress in enumerate(self.progress)
            for token, (total, log_prob) in dict(
                zip(
                    tokens[origin],
                    zip(totals[origin], log_probs[origin], strict=True),
                    strict=True,
                )
            ).items()
            if total > -math.inf
        ]
        return sorted(found, key=lambda one: one.total, reverse=True)

    def chosen(self, candidates: Sequence[Candidate], *, is_last: bool) -> list[Candidate]:
        """Return the K candidates to take, best first, and then what replaces those that end.

        A row that lacks a phrase ends only where no row can do anything else.

        Args:
            candidates: best first.
            is_last: whether nothing comes after this step.
        """
        self._count_ends(candidates[: self._size])
        possible = [one for one in candidates if not self._is_early(one)] or candidates
        if not self._may_wait:
            possible = [one for one in possible if self._goes_ahead(one)] or possible
        order = sort_by_met(possible) if is_last else allocate_banks(possible)
        taken = sorted(order[: self._size], key=lambda one: one.total, reverse=True)
        rest = [one for one in order[self._size :] if one.token != self._eos]
        # Whole rows alone end, so they make room for their like first.
        rest.sort(key=lambda one: (one.progress.is_whole, one.total), reverse=True)
        return taken + rest

    def _count_ends(self, best: Sequence[Candidate]) -> None:
        """Count the ends among what a search without phrases would take."""
        ends = [one for one in best if one.token == self._eos]
        if not self._may_wait:
            ends = [one for one in ends if one.progress.is_whole]
        self._num_ends += len(ends)
        if self._num_ends >= self._enough:
            self.is_over = not self._may_wait
            self._may_wait = False
            self._num_ends = 0

    def _is_early(self, one: Candidate) -> bool:
        return one.token == self._eos and not one.progress.is_whole

    def _goes_ahead(self, one: Candidate) -> bool:
        before = self.progress[one.origin]
        return one.progress.is_whole or one.progress.num_tokens > before.num_tokens


def allocate_banks(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates in the order in which they get a row.

    Those with equally many tokens of the phrases are a bank. The best of each bank come first,
    then the second best of each, and so on: in every round the bank that is furthest ahead, and
    then the others by their totals. So banks have equal shares, what one has no use for goes to
    the others, and with fewer rows than banks there is always one that goes ahead.

    Args:
        candidates: best first.
    """
    furthest = max((one.progress.num_tokens for one in candidates), default=0)
    seen: Counter[int] = Counter()
    keys = []
    for one in candidates:
        bank = one.progress.num_tokens
        keys.append((seen[bank], bank != furthest))
        seen[bank] += 1
    places = sorted(range(len(candidates)), key=keys.__getitem__)
    return [candidates[place] for place in places]


def sort_by_met(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates, those with most phrases first; among equals their order stays."""
    return sorted(candidates, key=lambda one: -one.progress.num_met)
