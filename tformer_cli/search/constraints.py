"""Phrases that a hypothesis must contain, as an automaton (Anderson et al. 2017)."""

from collections import Counter
from collections.abc import Sequence

from tformer_cli.search.request import Phrase


class Constraints:
    """Required phrases.

    A phrase that is listed n times must occur at n positions; occurrences may overlap. The state of
    a sequence is a function of its tokens, and is made when a sequence first reaches it.
    """

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        counts = Counter(phrases)
        self.phrases = tuple(counts)
        self.counts = tuple(counts.values())
        self.tokens = frozenset().union(*phrases)
        self._states: dict[tuple[tuple[int, ...], Phrase], ConstraintState] = {}
        self.start = self.state(self.counts, ())

    def state(self, missing: tuple[int, ...], partial: Phrase) -> "ConstraintState":
        """Return the `ConstraintState` of these arguments, always the same object."""
        key = (missing, partial)
        if key not in self._states:
            self._states[key] = ConstraintState(self, missing, partial)
        return self._states[key]

    def reached(self, tokens: Sequence[int]) -> "ConstraintState":
        """Return the state of a sequence of these tokens."""
        state = self.start
        for token in tokens:
            state = state.after(token)
        return state

    def continued(self, partial: Phrase, missing: Sequence[int]) -> list[Phrase]:
        """Return the missing phrases of which `partial` is a proper prefix."""
        size = len(partial)
        return [
            phrase
            for phrase, count in zip(self.phrases, missing, strict=True)
            if count and len(phrase) > size and phrase[:size] == partial
        ]


class ConstraintState:
    """How much of the required phrases a sequence has met.

    Args:
        constraints: the phrases.
        missing: how often each phrase has still to occur.
        partial: longest suffix of the sequence that is a proper prefix of a missing phrase.
    """

    def __init__(self, constraints: Constraints, missing: tuple[int, ...], partial: Phrase) -> None:
        self._constraints, self._missing, self._partial = constraints, missing, partial
        self._successors: dict[int, ConstraintState] = {}
        met = [count - left for count, left in zip(constraints.counts, missing, strict=True)]
        self.num_met = sum(met)
        self.is_complete = not any(missing)
        # Tokens of the met phrases and of the partial one: the bank of the sequence.
        lengths = map(len, constraints.phrases)
        self.num_tokens = len(partial) + sum(map(int.__mul__, lengths, met))
        # Tokens that continue a phrase, so that `num_tokens` grows.
        continued = constraints.continued(partial, missing)
        self.next_tokens = sorted({phrase[len(partial)] for phrase in continued})

    def after(self, token: int) -> "ConstraintState":
        """Return the state of the sequence with one more token."""
        if token not in self._constraints.tokens:
            return self._constraints.state(self._missing, ()) if self._partial else self
        if token not in self._successors:
            self._successors[token] = self._successor(token)
        return self._successors[token]

    def _successor(self, token: int) -> "ConstraintState":
        suffix = (*self._partial, token)
        missing = tuple(
            max(0, count - (suffix[-len(phrase) :] == phrase))
            for phrase, count in zip(self._constraints.phrases, self._missing, strict=True)
        )
        while suffix and not self._constraints.continued(suffix, missing):
            suffix = suffix[1:]
        return self._constraints.state(missing, suffix)
