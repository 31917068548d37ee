"""Subword sampling: words of a sentence segmented again at random.

Pieces never cross the beginning of a word, so words are segmented one by one. Each is a walk
through states; every state says which choices it has and how probable they are. States are made
where they are visited, so a common word costs a few lookups.
"""

import functools
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tformer_cli.config.schema.training import BpeDropoutConfig, SubwordSamplingConfig
from tformer_cli.text.subword import WHITESPACE_MARK, SubwordTokenizer

# States of a sampler before it starts anew, each a kilobyte or so.
MAX_STATES = 200_000

# Where each of the possible next pieces goes, and its id.
Choices = list[tuple[int, int]]


@dataclass(slots=True)
class State:
    """A word that is segmented so far, and the choice that comes next.

    A number in [0, 1) makes the first choice whose threshold is above it.
    """

    word: str
    pieces: tuple[int, ...]
    choices: Choices
    thresholds: Sequence[float]  # cumulative probabilities; none when the word is complete
    followers: "list[State | None]"  # those that were visited


class SubwordSampler(ABC):
    """Draws segmentations of sentences that a tokenizer has encoded."""

    def __init__(self, tokenizer: SubwordTokenizer) -> None:
        self.pieces = tokenizer.tokens(range(tokenizer.size))
        self.scores = tokenizer.scores()
        # Only these are segmented: neither special tokens nor bytes.
        self.ids = {self.pieces[i]: i for i in tokenizer.ordinary_ids}
        self.num_characters = [0] * tokenizer.size
        for i in tokenizer.ordinary_ids:
            self.num_characters[i] = len(self.pieces[i])
        self._begins = [piece[0] == WHITESPACE_MARK for piece in self.pieces]
        self._words: dict[tuple[int, ...], State] = {}
        self._states: dict[tuple[str, tuple[int, ...]], State] = {}

    def sample(self, ids: Sequence[int], numbers: Iterator[float]) -> list[int]:
        """Draw a segmentation of a sentence; special tokens and bytes stay as they are.

        `numbers`, in [0, 1), are at least as many as the characters of its pieces.
        """
        if len(self._states) > MAX_STATES:
            self._words.clear()
            self._states.clear()
        sampled: list[int] = []
        for word in self._split(ids):
            state = self._words.get(word) or self._begin(word)
            while state.thresholds:
                choice = bisect_right(state.thresholds, next(numbers))
                state = state.followers[choice] or self._follow(state, choice)
            sampled += state.pieces
        return sampled

    def _split(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the words of a sentence, and each id that is not segmented."""
        word: list[int] = []
        for i in ids:
            is_ordinary = self.num_characters[i] > 0
            if word and (self._begins[i] or not is_ordinary):
                yield tuple(word)
                word = []
            if is_ordinary:
                word.append(i)
            else:
                yield (i,)
        if word:
            yield tuple(word)

    def _begin(self, ids: tuple[int, ...]) -> State:
        word = "".join(self.pieces[i] for i in ids)
        # A piece may have characters that are no pieces.
        if self.num_characters[ids[0]] and all(map(self.ids.__contains__, word)):
            state = self._state(word, self.first_pieces(word))
        else:
            state = State(word, ids, [], (), [])
        self._words[ids] = state
        return state

    def _follow(self, state: State, choice: int) -> State:
        if choice == len(state.choices):
            follower = State(state.word, state.pieces, [], (), [])
        else:
            pieces = self.next_pieces(state.pieces, *state.choices[choice])
            follower = self._state(state.word, pieces)
        state.followers[choice] = follower
        return follower

    def _state(self, word: str, pieces: tuple[int, ...]) -> State:
        key = word, pieces
        state = self._states.get(key)
        if state is None:
            choices, thresholds = self.choices(word, pieces)
            state = State(word, pieces, choices, thresholds, [None] * len(thresholds))
            self._states[key] = state
        return state

    @abstractmethod
    def first_pieces(self, word: str) -> tuple[int, ...]:
        """Return the pieces before the first choice of a word whose characters are all pieces."""

    @abstractmethod
    def next_pieces(self, pieces: tuple[int, ...], at: int, piece: int) -> tuple[int, ...]:
        """Return the pieces after the choice of a piece."""

    @abstractmethod
    def choices(self, word: str, pieces: tuple[int, ...]) -> tuple[Choices, Sequence[float]]:
        """Return the choices and their thresholds, of which the last is 1.

        A threshold more than there are choices is that of completing the word; without thresholds
        it is complete.
        """


class BpeDropout(SubwordSampler):
    """BPE-dropout (Provilkov et al. 2020, algorithm 1).

    A word begins as its characters. Each step drops every possible merge with the probability
    `dropout` and takes the first in the order of learning that is left; without any, the word is
    complete. So the choice is how many of the ordered merges are dropped before one is not.
    """

    def __init__(self, tokenizer: SubwordTokenizer, dropout: float) -> None:
        super().__init__(tokenizer)
        self.dropout = dropout
        # Order and result of each merge of two pieces; the order decides, for no two have the same.
        self.merges = {
            (self.ids[piece[:at]], self.ids[piece[at:]]): (-self.scores[i], i)
            for piece, i in self.ids.items()
            for at in range(1, len(piece))
            if piece[:at] in self.ids and piece[at:] in self.ids
        }
        # By the number of merges; the states share them.
        self._known_thresholds: list[tuple[float, ...]] = [()]

    def first_pieces(self, word: str) -> tuple[int, ...]:
        return tuple(self.ids[character] for character in word)

    def next_pieces(self, pieces: tuple[int, ...], at: int, piece: int) -> tuple[int, ...]:
        return (*pieces[:at], piece, *pieces[at + 2 :])

    def choices(self, word: str, pieces: tuple[int, ...]) -> tuple[Choices, Sequence[float]]:
        merges = [
            (*self.merges[pair], at)
            for at, pair in enumerate(pairwise(pieces))
            if pair in self.merges
        ]
        return [(at, i) for _, i, at in sorted(merges)], self._thresholds(len(merges))

    def _thresholds(self, num_merges: int) -> Sequence[float]:
        while len(self._known_thresholds) <= num_merges:
            taken = [1 - self.dropout**k for k in range(1, len(self._known_thresholds) + 1)]
            self._known_thresholds.append((*taken, 1.0))
        return self._known_thresholds[num_merges]


class UnigramSampling(SubwordSampler):
    """Segmentations by a unigram model (Kudo 2018, equation 8, over all segmentations).

    The probability of one is proportional to the product of p(piece)^`alpha`. The first piece of
    what is left is drawn by the sums over all segmentations of what then remains.
    """

    def __init__(self, tokenizer: SubwordTokenizer, alpha: float) -> None:
        super().__init__(tokenizer)
        self.alpha = alpha
        self.max_length = max(self.num_characters)
        # Without whitespace between words one is a whole sentence, and each of its pieces needs
        # the sums.
        self._log_sums = functools.lru_cache(maxsize=1)(self._compute_log_sums)

    def first_pieces(self, word: str) -> tuple[int, ...]:
        return ()

    def next_pieces(self, pieces: tuple[int, ...], at: int, piece: int) -> tuple[int, ...]:
        return (*pieces, piece)

    def choices(self, word: str, pieces: tuple[int, ...]) -> tuple[Choices, Sequence[float]]:
        start = sum(self.num_characters[i] for i in pieces)
        if start == len(word):
            return [], ()
        logs = self._log_sums(word)
        nexts = list(self._pieces_at(word, start))
        sums = accumulate(math.exp(weight + logs[end] - logs[start]) for _, end, weight in nexts)
        # Rounding must not leave a number above the last one.
        thresholds = (*list(sums)[:-1], 1.0)
        return [(len(pieces), i) for i, _, _ in nexts], thresholds

    def _compute_log_sums(self, word: str) -> list[float]:
        """Return for each position the logarithm of the summed weights of what follows it."""
        logs = [0.0] * (len(word) + 1)
        for start in reversed(range(len(word))):
            terms = [weight + logs[end] for _, end, weight in self._pieces_at(word, start)]
            peak = max(terms)
            logs[start] = peak + math.log(sum(math.exp(term - peak) for term in terms))
        return logs

    def _pieces_at(self, word: str, start: int) -> Iterator[tuple[int, int, float]]:
        """Yield each piece that begins there, its end, and the logarithm of its weight."""
        for end in range(start + 1, min(len(word), start + self.max_length) + 1):
            i = self.ids.get(word[start:end])
            if i is not None:
                yield i, end, self.alpha * self.scores[i]


def build_sampler(config: SubwordSamplingConfig, tokenizer: SubwordTokenizer) -> SubwordSampler:
    """Return the sampler of a configuration."""
    if isinstance(config, BpeDropoutConfig):
        return BpeDropout(tokenizer, config.dropout)
    return UnigramSampling(tokenizer, config.alpha)
