from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.corpus.store import build_store

ids = st.lists(st.integers(0, 2**32 - 1), max_size=6)
triples = st.lists(st.tuples(ids, ids, st.floats(0.1, 9.0)), max_size=12)


@given(triples)
def test_store_gives_back_what_was_put_in(pairs):
    store = build_store(iter(pairs))
    assert len(store) == len(pairs)
    for index, (source, target, weight) in enumerate(pairs):
        assert store[index].index == index
        assert store[index].source.tolist() == source
        assert store[index].target.tolist() == target
        assert store.weights[index] == weight
    assert store.source_lengths.tolist() == [len(source) for source, _, _ in pairs]
    assert store.target_lengths.tolist() == [len(target) for _, target, _ in pairs]


@given(triples, triples)
def test_fingerprints_are_equal_for_equal_pairs_only(pairs, others):
    same = build_store(pairs).fingerprint() == build_store(others).fingerprint()
    assert same == (pairs == others)


def test_fingerprint_sees_where_one_sentence_ends_and_the_next_begins():
    first = build_store([([1, 2], [5], 1.0), ([3], [5], 1.0)])
    second = build_store([([1], [5], 1.0), ([2, 3], [5], 1.0)])
    assert first.fingerprint() != second.fingerprint()
