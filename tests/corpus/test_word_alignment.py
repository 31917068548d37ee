"""Word alignment: the probabilities and the links of a slow computation, word by word."""

import itertools
import math
import os
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.corpus.word_alignment import (
    ITERATIONS,
    NULL_PROBABILITY,
    TENSION,
    align_words,
    grow_diag,
)

Sentence = list[str]
SENTENCE = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4)
LINKS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)))


def prior(source: Sentence, target: Sentence, i: int, j: int) -> float:
    """Return the probability of a position of the source; -1 is the null word."""
    if i < 0:
        return NULL_PROBABILITY

    def near(position: int) -> float:
        middles = (position + 0.5) / len(source), (j + 0.5) / len(target)
        return math.exp(-TENSION * abs(middles[0] - middles[1]))

    return (1 - NULL_PROBABILITY) * near(i) / sum(map(near, range(len(source))))


def likelihoods(pairs: list[tuple[Sentence, Sentence]]) -> list[list[dict[int, float]]]:
    """Return the likelihood of each link of each target word, by expectation maximization."""

    def word(source: Sentence, i: int) -> str | None:
        return None if i < 0 else source[i]

    def scores(source: Sentence, target: Sentence, j: int) -> dict[int, float]:
        return {
            i: prior(source, target, i, j) * probability[word(source, i), target[j]]
            for i in range(-1, len(source))
        }

    probability: dict[tuple[str | None, str], float] = defaultdict(lambda: 1.0)
    for _ in range(ITERATIONS):
        counts: dict[tuple[str | None, str], float] = defaultdict(float)
        for source, target in pairs:
            for j in range(len(target)):
                row = scores(source, target, j)
                for i, score in row.items():
                    counts[word(source, i), target[j]] += score / sum(row.values())
        totals: dict[str | None, float] = defaultdict(float)
        for (candidate, _), count in counts.items():
            totals[candidate] += count
        probability = {pair: count / totals[pair[0]] for pair, count in counts.items()}
    return [[scores(source, target, j) for j in range(len(target))] for source, target in pairs]


@given(st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=4))
def test_links_are_those_of_the_best_alignments(pairs):
    forward = likelihoods(pairs)
    backward = likelihoods([(target, source) for source, target in pairs])
    links = list(align_words(*zip(*pairs, strict=True)))
    assert len(links) == len(pairs)
    for own, one, other in zip(links, forward, backward, strict=True):

        def is_best(row: dict[int, float], index: int) -> bool:
            # Equal likelihoods may differ in their last bits.
            return row[index] > max(row.values()) * (1 - 1e-9)

        possible = {(i, j) for j, row in enumerate(one) for i in row if is_best(row, i)}
        possible |= {(i, j) for i, row in enumerate(other) for j in row if is_best(row, j)}
        certain = {
            (i, j)
            for i, j in possible
            if min(i, j) >= 0
            and all(is_best(one[j], k) == (k == i) for k in one[j])
            and all(is_best(other[i], k) == (k == j) for k in other[i])
        }
        assert certain <= own <= possible


@given(LINKS, LINKS)
def test_growing_ends_when_no_neighbor_brings_a_word(forward, backward):
    links = grow_diag(forward, backward)
    assert forward & backward <= links <= forward | backward
    if not forward & backward:
        assert links == set()
    for source, target in (forward | backward) - links:
        is_new = source not in {i for i, _ in links} or target not in {j for _, j in links}
        adjoins = any(max(abs(source - i), abs(target - j)) == 1 for i, j in links)
        assert not (is_new and adjoins)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_words_that_occur_together_are_aligned(order):
    words = {
        "the": "der", "a": "ein", "dog": "Hund", "cat": "Kater", "bird": "Vogel",
        "sleeps": "schläft", "runs": "rennt", "eats": "frisst",
    }  # fmt: skip
    sources = list(
        itertools.product(["the", "a"], ["dog", "cat", "bird"], ["sleeps", "runs", "eats"])
    )
    # The other language may have another order.
    targets = [[words[source[i]] for i in order] for source in sources]
    for links in align_words(sources, targets):
        assert links == {(i, j) for j, i in enumerate(order)}


# Each word stands once, so that links at the same distance from the diagonal are as likely as each
# other, up to the last bit.
LINKS_OF_NEW_WORDS = """
import itertools, random
from tformer_cli.corpus.word_alignment import align_words
draw, words = random.Random(1), map(str, itertools.count())
sides = [
    [list(itertools.islice(words, draw.randint(1, 30))) for _ in range(100)] for _ in range(2)
]
print([sorted(links) for links in align_words(*sides)])
"""


def test_links_are_the_same_on_a_processor_with_fewer_instructions():
    def links(**environment: str) -> str:
        command = [sys.executable, "-W", "ignore", "-c", LINKS_OF_NEW_WORDS]
        return subprocess.run(
            command, env=os.environ | environment, check=True, capture_output=True, text=True
        ).stdout

    optional = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    plain = links(NPY_DISABLE_CPU_FEATURES=" ".join(optional))
    assert len(plain) > 1000
    assert links() == plain
