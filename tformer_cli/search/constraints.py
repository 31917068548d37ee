"""Required phrases, and dynamic beam allocation (Post and Vilar 2018) among them."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tformer_cli.search.request import Phrase


class Constraints:
    """Phrases that a hypothesis must contain, as an automaton (Anderson et al. 2017).

    A phrase that is listed n times must occur at n positions; occurrences may overlap. The state of
    a sequence is a function of its tokens; states are made when sequences reach them.
    """

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        counts = Counter(phrases)
        self.phrases = tuple(counts)
        self.counts = tuple(counts.values())
        self.tokens = frozenset().union(*phrases)
        self._states: dict[tuple[tuple[int, ...], Phrase], ConstraintState] = {}
        self.start = self.state(self.counts, ())

    def state(self, missing: tuple[int, ...], begun: Phrase) -> "ConstraintState":
        """Return the state, the same object for equal arguments, as `ConstraintState` has them."""
        key = (missing, begun)
        if key not in self._states:
            self._states[key] = ConstraintState(self, missing, begun)
        return self._states[key]

    def reached(self, tokens: Sequence[int]) -> "ConstraintState":
        """Return the state of a sequence of these tokens."""
        state = self.start
        for token in tokens:
            state = state.after(token)
        return state


class ConstraintState:
    """How much of the required phrases a sequence has met.

    Args:
        constraints: the phrases.
        missing: how often each phrase has still to occur.
        begun: longest suffix of the sequence that is a proper prefix of a missing phrase.
    """

    def __init__(self, constraints: Constraints, missing: tuple[int, ...], begun: Phrase) -> None:
        self._constraints, self._missing, self._begun = constraints, missing, begun
        self._successors: dict[int, ConstraintState] = {}
        phrases = constraints.phrases
        met = [count - left for count, left in zip(constraints.counts, missing, strict=True)]
        self.is_complete = not any(missing)
        self.num_met = sum(met)
        # Tokens of these phrases and of the one that is begun: the bank of the sequence.
        lengths = [len(phrase) for phrase in phrases]
        self.num_tokens = len(begun) + sum(map(int.__mul__, lengths, met))
        # Tokens that continue a phrase, so that `num_tokens` grows.
        continued = _continued(begun, phrases, missing)
        self.next_tokens = sorted({phrase[len(begun)] for phrase in continued})

    def after(self, token: int) -> "ConstraintState":
        """Return the state of the sequence with one more token."""
        if token not in self._constraints.tokens:
            return self._constraints.state(self._missing, ()) if self._begun else self
        if token not in self._successors:
            self._successors[token] = self._successor(token)
        return self._successors[token]

    def _successor(self, token: int) -> "ConstraintState":
        phrases, suffix = self._constraints.phrases, (*self._begun, token)
        missing = tuple(
            max(0, left - (suffix[-len(phrase) :] == phrase))
            for phrase, left in zip(phrases, self._missing, strict=True)
        )
        while suffix and not _continued(suffix, phrases, missing):
            suffix = suffix[1:]
        return self._constraints.state(missing, suffix)


def _continued(begun: Phrase, phrases: Sequence[Phrase], missing: Sequence[int]) -> list[Phrase]:
    """Return the missing phrases of which `begun` is a proper prefix."""
    size = len(begun)
    return [
        phrase
        for phrase, left in zip(phrases, missing, strict=True)
        if left and len(phrase) > size and phrase[:size] == begun
    ]


class Candidate(NamedTuple):
    """Continuation of a live sequence by one token."""

    total: float  # sum of scores
    log_prob: float  # sum of log probabilities
    beam_index: int  # sequence 0..K-1 that is continued
    token: int  # new token
    state: ConstraintState  # of the sequence with it


class ConstrainedBeam:
    """The K live sequences of one sentence with required phrases.

    Sequences may wait for a good position of a phrase until `enough` of them would have ended
    without phrases, had they been allowed to. What follows after that is of low quality, so from
    then on every sequence continues with its phrases.
    """

    def __init__(self, phrases: Sequence[Phrase], num_beams: int, enough: int, eos: int) -> None:
        self.constraints = Constraints(phrases)
        self.states = [self.constraints.start] * num_beams
        self.is_over = False  # `enough` complete sequences have ended since none may wait
        self._num_beams, self._enough, self._eos = num_beams, enough, eos
        self._num_ended = 0
        self._may_wait = True

    def append(self, beam_indices: Sequence[int], tokens: Sequence[int]) -> None:
        """Let sequence k continue sequence beam_indices[k] by a token."""
        self.states = [
            self.states[index].after(token)
            for index, token in zip(beam_indices, tokens, strict=True)
        ]

    def candidates(
        self,
        tokens: Sequence[Sequence[int]],
        totals: Sequence[Sequence[float]],
        log_probs: Sequence[Sequence[float]],
    ) -> list[Candidate]:
        """Return the possible continuations of all sequences, best first.

        Next tokens are listed for each sequence, perhaps twice, with the sums of scores and of log
        probabilities.
        """
        candidates = []
        for index, state in enumerate(self.states):
            sums = zip(totals[index], log_probs[index], strict=True)
            for token, (total, log_prob) in dict(zip(tokens[index], sums, strict=True)).items():
                if total > -math.inf:
                    after = state.after(token)
                    candidates.append(Candidate(total, log_prob, index, token, after))
        return sorted(candidates, key=lambda candidate: candidate.total, reverse=True)

    def allocate(self, candidates: Sequence[Candidate], *, is_last: bool) -> list[Candidate]:
        """Return the K candidates to continue by, best first, and then what replaces ended ones.

        An incomplete sequence ends only if no sequence can do anything else. The last step is that
        at the length limit.
        """
        self._count_ended(candidates[: self._num_beams])
        possible = [one for one in candidates if not self._is_early(one)] or candidates
        if not self._may_wait:
            possible = [one for one in possible if self._is_progress(one)] or possible
        order = sort_by_met(possible) if is_last else allocate_banks(possible)
        chosen = order[: self._num_beams]
        rest = [one for one in order[self._num_beams :] if one.token != self._eos]
        # Only complete sequences end, so complete ones replace them first.
        rest.sort(
            key=lambda candidate: (candidate.state.is_complete, candidate.total), reverse=True
        )
        return sorted(chosen, key=lambda candidate: candidate.total, reverse=True) + rest

    def _count_ended(self, best: Sequence[Candidate]) -> None:
        """Count what ends among the candidates that a search without phrases would choose."""
        ended = [one for one in best if one.token == self._eos]
        if not self._may_wait:
            ended = [one for one in ended if one.state.is_complete]
        self._num_ended += len(ended)
        if self._num_ended >= self._enough:
            self.is_over = not self._may_wait
            self._may_wait = False
            self._num_ended = 0

    def _is_early(self, candidate: Candidate) -> bool:
        return candidate.token == self._eos and not candidate.state.is_complete

    def _is_progress(self, candidate: Candidate) -> bool:
        before = self.states[candidate.beam_index]
        return candidate.state.is_complete or candidate.state.num_tokens > before.num_tokens


def allocate_banks(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates, best first, in the order in which they enter the beam.

    Candidates with equal `num_tokens` are a bank. In each round every bank contributes its best
    remaining candidate: first the most advanced bank, then the others by their totals. So banks
    have equal shares, what a bank cannot use goes to others, and the most advanced bank is never
    empty.
    """
    most = max((candidate.state.num_tokens for candidate in candidates), default=0)
    sizes: Counter[int] = Counter()
    keys = []
    for candidate in candidates:
        bank = candidate.state.num_tokens
        keys.append((sizes[bank], bank != most))
        sizes[bank] += 1
    order = sorted(range(len(candidates)), key=keys.__getitem__)
    return [candidates[index] for index in order]


def sort_by_met(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates, those with most phrases first; equal ones keep their order."""
    return sorted(candidates, key=lambda candidate: -candidate.state.num_met)
