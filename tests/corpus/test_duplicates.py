"""Duplicates and near-duplicates: what a search of all pairs of pairs would find."""

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.data import FilterConfig
from tformer_cli.corpus import duplicates
from tformer_cli.corpus.duplicates import (
    DUPLICATE,
    NUM_HASHES,
    SIMILAR,
    UNIQUE,
    find_duplicates,
    find_repeats,
    find_similar,
    fingerprints,
    minhash,
    pair_digests,
)

WORDS = "a big dog cat runs sleeps in the park house near old young man and red".split()  # noqa: SIM905


def sentence(rng: random.Random, length: int = 12) -> str:
    return " ".join(rng.choices(WORDS, k=length))


def jaccard(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    """Similarity of the character 5-grams, padded at the end."""
    first, second = (
        {text[i : i + 5] for i in range(len(text) - 4)}
        for text in (" ".join(pair).casefold() + "\0" * 4 for pair in (one, other))
    )
    return len(first & second) / len(first | second)


def similar(pairs: list[tuple[str, str]], threshold: float) -> list[bool]:
    with tempfile.TemporaryDirectory() as folder:
        return find_similar(minhash(pairs), threshold, Path(folder)).tolist()


def test_duplicate_is_equal_on_both_sides_as_text(tmp_path: Path) -> None:
    pairs = [("a", "b"), ("a", "c"), ("c", "b"), ("a", "b"), ("ab", ""), ("", "ab"), ("A", "b")]
    repeated = find_repeats(pair_digests(pairs), tmp_path).tolist()
    assert repeated == [False, False, False, True, False, False, False]


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 12))
def test_repeats_are_what_came_before(numbers: list[int], group: int) -> None:
    digests = pair_digests((str(number), "") for number in numbers)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(duplicates, "GROUP_PAIRS", group)
        with tempfile.TemporaryDirectory() as folder:
            repeated = find_repeats(digests, Path(folder))
            assert list(Path(folder).iterdir()) == []
    assert repeated.tolist() == [number in numbers[:i] for i, number in enumerate(numbers)]


@pytest.mark.parametrize("half", [0, 1])
def test_pairs_whose_digests_differ_in_one_half_are_no_duplicates(
    half: int, tmp_path: Path
) -> None:
    digests = np.ones((2, 2), dtype=np.uint64)
    digests[1, half] = 2
    assert find_repeats(digests, tmp_path).tolist() == [False, False]


def test_equal_minima_estimate_the_jaccard_similarity() -> None:
    rng = random.Random(1)
    errors = []
    for _ in range(200):
        pair = sentence(rng), sentence(rng)
        share = rng.random() / 2
        other = tuple(
            " ".join(w if rng.random() > share else rng.choice(WORDS) for w in side.split())
            for side in pair
        )
        one, two = minhash([pair, other])
        errors.append((one == two).mean() - jaccard(pair, other))
    # A share of 64 hashes has a standard deviation of 1/16 at most.
    assert abs(np.mean(errors)) < 3 / 16 / len(errors) ** 0.5
    assert np.std(errors) < 1 / 16


def test_signatures_depend_on_their_pair_alone() -> None:
    pairs = [("Ein Hund", "a dog"), ("x", "y"), ("日本", "Japan"), ("ein  hund", "A DOG")]
    together = minhash(pairs)
    np.testing.assert_array_equal(together, np.concatenate([minhash([pair]) for pair in pairs]))
    np.testing.assert_array_equal(together[0], together[3])
    assert (together[0] == together[2]).mean() < 0.1
    assert minhash([]).shape == (0, NUM_HASHES)


@pytest.mark.parametrize("group", [7, 1 << 19])
def test_pairs_like_an_earlier_one_are_similar(monkeypatch, group: int) -> None:
    monkeypatch.setattr(duplicates, "GROUP_PAIRS", group)
    monkeypatch.setattr(duplicates, "COMPARED_PAIRS", 3)
    rng = random.Random(2)
    pairs = [(sentence(rng, 20), sentence(rng, 20)) for _ in range(60)]
    pairs += [(f"{source}!", target) for source, target in pairs[::3]]
    rng.shuffle(pairs)
    similarities = [
        max((jaccard(pair, earlier) for earlier in pairs[:index]), default=0.0)
        for index, pair in enumerate(pairs)
    ]
    assert not any(0.5 < similarity < 0.9 for similarity in similarities)
    assert similar(pairs, 0.7) == [similarity > 0.7 for similarity in similarities]


def test_the_first_of_similar_pairs_is_kept() -> None:
    pair = sentence(random.Random(3), 20), sentence(random.Random(4), 20)
    near = f"{pair[0]}.", pair[1]
    assert similar([near, pair, near, pair], 0.8) == [False, True, True, True]
    assert similar([near, pair, near], 1.0) == [False, False, True]


def test_kinds_tell_duplicates_from_near_duplicates(tmp_path: Path) -> None:
    pair = sentence(random.Random(5), 20), sentence(random.Random(6), 20)
    pairs = [pair, (f"{pair[0]}.", pair[1]), ("other", "andere"), pair]
    expected = {
        (True, 0.8): [UNIQUE, SIMILAR, UNIQUE, DUPLICATE],
        (True, None): [UNIQUE, UNIQUE, UNIQUE, DUPLICATE],
        (False, 0.8): [UNIQUE, SIMILAR, UNIQUE, SIMILAR],
        (False, None): [UNIQUE] * 4,
    }
    for (drop_duplicates, max_similarity), kinds in expected.items():
        config = FilterConfig(drop_duplicates=drop_duplicates, max_similarity=max_similarity)
        parts = (fingerprints(part, config) for part in (pairs[:3], pairs[3:]))
        assert find_duplicates(parts, 4, config, tmp_path).tolist() == kinds
    assert find_duplicates(iter(()), 0, FilterConfig(), tmp_path).tolist() == []
