"""Draws the splits: no sentence twice, the held-out combinations in the test only."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from demo_corpus import english, german
from demo_corpus.holdout import Combination, combinations
from demo_corpus.sentences import Author

NUM_TRAIN = 20_000
NUM_VALID = 500
NUM_TEST = 500
# Of the test sentences; the others are like training, for comparison.
NUM_UNSEEN = 350
SEED = 2017

_MIN_WORDS, _MAX_WORDS = 6, 16
# A word form of the test is seen this often in training, or the test would ask to guess.
MIN_FORM_COUNT = 10


@dataclass(frozen=True)
class Pair:
    """A sentence in both languages, with the word combinations in it."""

    english: str
    german: str
    combinations: frozenset[Combination]

    @property
    def has_held_out(self) -> bool:
        """Whether it holds a combination that training never sees."""
        return any(combination.is_held_out() for combination in self.combinations)


@dataclass(frozen=True)
class Corpus:
    """The three splits."""

    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]


def forms(sentence: str) -> list[str]:
    """The words of a sentence, without punctuation and the capital of its first word."""
    words = sentence.replace(",", "").rstrip(".?").split()
    return [words[0][0].lower() + words[0][1:], *words[1:]]


def generate(seed: int = SEED) -> Corpus:
    """Draw the corpus; the same seed gives the same corpus."""
    pairs = _distinct(seed)
    train = _take(NUM_TRAIN, (pair for pair in pairs if not pair.has_held_out))
    counts_english = Counter(form for pair in train for form in forms(pair.english))
    counts_german = Counter(form for pair in train for form in forms(pair.german))
    fair = (
        pair
        for pair in pairs
        if all(counts_english[form] >= MIN_FORM_COUNT for form in forms(pair.english))
        and all(counts_german[form] >= MIN_FORM_COUNT for form in forms(pair.german))
    )
    valid = _take(NUM_VALID, (pair for pair in fair if not pair.has_held_out))
    test: list[Pair] = []
    room = {True: NUM_UNSEEN, False: NUM_TEST - NUM_UNSEEN}
    while len(test) < NUM_TEST:
        pair = next(fair)
        if room[pair.has_held_out] > 0:
            room[pair.has_held_out] -= 1
            test.append(pair)
    return Corpus(train, valid, tuple(test))


def _take(number: int, pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    return tuple(islice(pairs, number))


def _distinct(seed: int) -> Iterator[Pair]:
    """Pairs of fitting length; neither side ever comes back, whatever stands beside it."""
    author = Author(seed)
    known: set[str] = set()
    while True:
        meaning = author.sentence()
        sides = (english.sentence(meaning), german.sentence(meaning))
        if not all(_MIN_WORDS <= len(side.split()) <= _MAX_WORDS for side in sides):
            continue
        if known.isdisjoint(sides):
            known.update(sides)
            yield Pair(*sides, combinations(meaning))
