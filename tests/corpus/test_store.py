"""Token stores in memory, and weights in runs."""

import hashlib
import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted import weighted_store

from tformer_cli.corpus import store as store_module
from tformer_cli.corpus.store import BidirectionalStore, PairTags, PairWeights

Triple = tuple[list[int], list[int], float]

ids = st.lists(st.integers(0, 2**32 - 1), max_size=6)
triples = st.lists(st.tuples(ids, ids, st.floats(0.1, 9.0)), max_size=12)


@given(triples)
def test_store_gives_back_what_was_put_in(pairs):
    store = weighted_store(iter(pairs))
    assert len(store) == len(pairs)
    examples = store.examples(np.arange(len(pairs)))
    for index, (source, target, weight) in enumerate(pairs):
        assert examples[index].index == index
        assert examples[index].source.tolist() == source
        assert examples[index].target.tolist() == target
        assert store.weights[index : index + 1].tolist() == [weight]
    assert store.source_lengths.tolist() == [len(source) for source, _, _ in pairs]
    assert store.target_lengths.tolist() == [len(target) for _, target, _ in pairs]


@st.composite
def near(draw: st.DrawFn) -> tuple[list[Triple], list[Triple]]:
    """Pairs, and the same with one thing changed, or with nothing that changes them."""
    pairs = draw(triples.filter(bool))
    position = draw(st.integers(0, len(pairs) - 1))
    source, target, weight = pairs[position]
    some = st.integers(0, 2**32 - 1)
    replaced = draw(
        st.sampled_from(
            [
                [(source, target, draw(st.floats(0.1, 9.0)))],
                [(source, target, math.nextafter(weight, 10.0))],
                [([*source, draw(some)], target, weight)],
                [(source[:-1], target, weight)],
                [(source, [*target[1:], *target[:1]], weight)],
                [(source, [*target[:-1], draw(some)], weight)],
                [(target, source, weight)],
                [(source + target, [], weight)],
                [(source, target, weight)] * 2,
                [],
                [(source, target, weight)],
            ]
        )
    )
    return pairs, [*pairs[:position], *replaced, *pairs[position + 1 :]]


@settings(max_examples=200)
@given(near() | st.tuples(triples, triples))
def test_fingerprints_are_equal_for_equal_pairs_only(both):
    pairs, others = both
    same = weighted_store(pairs).fingerprint() == weighted_store(others).fingerprint()
    assert same == (pairs == others)


@given(triples.filter(bool), st.data())
def test_a_fingerprint_sees_the_least_change(pairs, data):
    """Of pairs that are drawn twice hardly any are nearly equal."""
    position = data.draw(st.integers(0, len(pairs) - 1))
    source, target, weight = pairs[position]
    changes = [
        (source, target, weight + 1),
        (target, source, weight),
        (source, target[:-1], weight),
    ]
    changes += [([*source, 0], target, weight), (source, [*target, 7], weight)]
    changes += [([(source[0] + 1) % 2**32, *source[1:]], target, weight)] if source else []
    own = weighted_store(pairs).fingerprint()
    for change in changes:
        others = [*pairs[:position], change, *pairs[position + 1 :]]
        assert (weighted_store(others).fingerprint() == own) == (others == pairs)
    shorter = pairs[:position] + pairs[position + 1 :]
    assert weighted_store(shorter).fingerprint() != own


def test_fingerprint_sees_where_one_sentence_ends_and_the_next_begins():
    first = weighted_store([([1, 2], [5], 1.0), ([3], [5], 1.0)])
    second = weighted_store([([1], [5], 1.0), ([2, 3], [5], 1.0)])
    assert first.fingerprint() != second.fingerprint()


@given(triples)
def test_fingerprint_is_the_same_in_integers_of_any_size(pairs):
    small = [([i % 60000 for i in s], [i % 60000 for i in t], w) for s, t, w in pairs]
    store = weighted_store(small)
    narrow = replace(
        store,
        source_ids=store.source_ids.astype(np.uint16),
        target_ids=store.target_ids.astype(np.uint16),
    )
    assert narrow.fingerprint() == store.fingerprint()


def test_fingerprint_is_that_of_all_bytes_at_once(monkeypatch):
    """Runs that began before know it as this."""
    pairs = [([1, 2, 3], [4], 1.0), ([5], [6, 7], 1.0), ([8], [9], 2.5)]
    parts = (
        np.array([1, 2, 3, 5, 8], dtype=np.uint32),
        np.array([0, 3, 4, 5], dtype=np.int64),
        np.array([4, 6, 7, 9], dtype=np.uint32),
        np.array([0, 1, 3, 4], dtype=np.int64),
        np.array([1.0, 1.0, 2.5]),
    )
    expected = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
    for size in (1, 2, 100):
        monkeypatch.setattr(store_module, "SLICE", size)
        assert weighted_store(pairs).fingerprint() == expected
        assert weighted_store(pairs).source_lengths.tolist() == [3, 1, 1]


weights = st.lists(st.sampled_from([0.5, 1.0, 2.25]), max_size=12)


@given(weights, st.integers(0, 12), st.integers(0, 12))
def test_weights_of_pairs_are_those_that_were_given(values, start, stop):
    found = PairWeights.of_runs([1] * len(values), values)
    assert len(found) == len(values)
    assert found[start:stop].tolist() == values[start:stop]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.1, 9.0)), max_size=5))
def test_weights_of_runs_stand_for_each_pair_of_a_run(runs):
    found = PairWeights.of_runs([count for count, _ in runs], [value for _, value in runs])
    assert found[:].tolist() == [value for count, value in runs for _ in range(count)]


tags = st.lists(st.integers(6, 15), max_size=2)


@given(st.lists(st.tuples(ids, ids, st.floats(0.1, 9.0), tags), min_size=1, max_size=12), st.data())
def test_both_directions_are_all_pairs_and_all_pairs_swapped(pairs, data):
    store = weighted_store((source, target, weight) for source, target, weight, _ in pairs)
    if any(own for *_, own in pairs):
        store = replace(store, tags=PairTags.of_runs([1] * len(pairs), [own for *_, own in pairs]))
    both = BidirectionalStore(store)
    expected = [(own + source, target, weight) for source, target, weight, own in pairs]
    expected += [(own + target, source, weight) for source, target, weight, own in pairs]
    assert both.source_lengths.tolist() == [len(source) for source, _, _ in expected]
    assert both.target_lengths.tolist() == [len(target) for _, target, _ in expected]
    assert both.weights[:].tolist() == [weight for _, _, weight in expected]
    indices = data.draw(st.lists(st.integers(0, len(expected) - 1)))
    examples = both.examples(np.array(indices, dtype=np.int32))
    assert [x.index for x in examples] == indices
    found = [(x.source.tolist(), x.target.tolist()) for x in examples]
    assert found == [expected[index][:2] for index in indices]
