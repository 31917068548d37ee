"""What a translation must contain, and how far a row has come with it."""

from collections import Counter
from collections.abc import Sequence

Phrase = tuple[int, ...]


class Constraints:
    """Phrases that a translation must contain.

    A phrase that is listed n times must occur at n places; occurrences, of one phrase or of
    several, may share tokens. So how far a row has come is a function of its tokens alone, and the
    states below are those of an automaton (Anderson et al. 2017), made as rows reach them.

    Attributes:
        start: the state of an empty row.
    """

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        """Take phrases of at least one token each."""
        counts = Counter(phrases)
        self.phrases = tuple(counts)
        self.counts = tuple(counts.values())
        self.tokens = frozenset().union(*phrases)
        self._states: dict[tuple[tuple[int, ...], Phrase], ConstraintState] = {}
        self.start = self.state(self.counts, ())

    def state(self, missing: tuple[int, ...], begun: Phrase) -> "ConstraintState":
        """Return the state of these rows, the same object for the same rows.

        Args:
            missing: how often each phrase has still to come.
            begun: the longest end of a row that begins a missing phrase, and is not all of it.
        """
        key = (missing, begun)
        if key not in self._states:
            self._states[key] = ConstraintState(self, missing, begun)
        return self._states[key]

    def reached(self, tokens: Sequence[int]) -> "ConstraintState":
        """Return the state of a row with these tokens."""
        progress = self.start
        for token in tokens:
            progress = progress.after(token)
        return progress


class ConstraintState:
    """How far a row has come.

    Attributes:
        num_met: phrases that it contains, one that is listed n times counted up to n times.
        num_tokens: tokens of these phrases, and of the one that it is about to write.
        is_whole: whether it contains them all.
        wanted: the tokens that bring it forward; each makes `num_tokens` grow.
    """

    def __init__(self, constraints: Constraints, missing: tuple[int, ...], begun: Phrase) -> None:
        """Describe a state, as `Constraints.state` says."""
        self._constraints, self._missing, self._begun = constraints, missing, begun
        phrases, place = constraints.phrases, len(begun)
        met = [all_ - left for all_, left in zip(constraints.counts, missing, strict=True)]
        lengths = [len(phrase) for phrase in phrases]
        self.num_met = sum(met)
        self.num_tokens = place + sum(map(int.__mul__, lengths, met))
        self.is_whole = not any(missing)
        self.wanted = sorted(
            {
                phrase[place]
                for phrase, left in zip(phrases, missing, strict=True)
                if left and len(phrase) > place and phrase[:place] == begun
            }
        )
        self._next: dict[int, ConstraintState] = {}

    def after(self, token: int) -> "ConstraintState":
        """Return the state of the row with one more token."""
        if token not in self._constraints.tokens:
            return self._constraints.state(self._missing, ()) if self._begun else self
        if token not in self._next:
            self._next[token] = self._made(token)
        return self._next[token]

    def _made(self, token: int) -> "ConstraintState":
        phrases, end = self._constraints.phrases, (*self._begun, token)
        missing = tuple(
            max(0, left - (end[-len(phrase) :] == phrase))
            for phrase, left in zip(phrases, self._missing, strict=True)
        )
        ends = (end[place:] for place in range(len(end)))
        begun = next((one for one in ends if _begins_any(one, phrases, missing)), ())
        return self._constraints.state(missing, begun)


def _begins_any(tokens: Phrase, phrases: Sequence[Phrase], missing: Sequence[int]) -> bool:
    """Say whether a missing phrase begins with these tokens and goes on."""
    size = len(tokens)
    return any(
        left and len(phrase) > size and phrase[:size] == tokens
        for phrase, left in zip(phrases, missing, strict=True)
    )
