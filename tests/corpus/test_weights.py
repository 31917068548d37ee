from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.corpus.weights import PairWeights

weights = st.lists(st.sampled_from([0.5, 1.0, 2.25]), max_size=12)


@given(weights, st.integers(0, 12), st.integers(0, 12))
def test_weights_of_pairs_are_those_that_were_given(values, start, stop):
    found = PairWeights.of_pairs(values)
    assert len(found) == len(values)
    assert found[start:stop].tolist() == values[start:stop]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.1, 9.0)), max_size=5))
def test_weights_of_runs_stand_for_each_pair_of_a_run(runs):
    found = PairWeights.of_runs([count for count, _ in runs], [value for _, value in runs])
    assert found[:].tolist() == [value for count, value in runs for _ in range(count)]
