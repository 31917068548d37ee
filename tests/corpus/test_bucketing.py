"""Properties of the epoch's plan, for any corpus."""

import threading
from collections import defaultdict
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.corpus import store
from tformer_cli.corpus.bucketing import (
    POOL_BATCHES,
    Bucketing,
    DataPosition,
    EpochPlans,
    epoch_plans,
)
from tformer_cli.corpus.store import PairWeights, TokenStore

pair_lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=200)
budgets = st.integers(1, 120)
seeds = st.integers(0, 2**31)


def bucketing(pairs, budget, seed=1, weights=None) -> Bucketing:
    source, target = np.array(pairs).T
    if not isinstance(weights, PairWeights):
        weights = np.ones(len(pairs)) if weights is None else np.array(weights)
    return Bucketing(source, target, weights, budget, seed)


@given(pair_lengths, budgets, seeds, st.integers(0, 5))
def test_an_epoch_sees_every_example_once(pairs, budget, seed, epoch):
    plan = bucketing(pairs, budget, seed).plan(epoch)
    assert sorted(np.concatenate(plan)) == list(range(len(pairs)))


@given(pair_lengths, budgets, seeds)
def test_a_batch_stays_within_the_budget_on_both_sides(pairs, budget, seed):
    for batch in bucketing(pairs, budget, seed).plan(0):
        widest = max(max(pairs[i]) for i in batch)
        assert len(batch) == 1 or len(batch) * widest <= budget


@given(pair_lengths, budgets, seeds, st.integers(0, 5))
def test_the_plan_is_a_function_of_seed_and_epoch(pairs, budget, seed, epoch):
    once, again = (bucketing(pairs, budget, seed).plan(epoch) for _ in range(2))
    assert [batch.tolist() for batch in once] == [batch.tolist() for batch in again]


@given(pair_lengths, budgets, st.integers(0, 40))
def test_going_on_from_a_position_continues_the_same_sequence(pairs, budget, done):
    buckets = bucketing(pairs, budget)
    unbroken = list(islice(EpochPlans(buckets).batches_from(DataPosition()), done + 10))
    position = unbroken[done - 1][1] if done else DataPosition()
    resumed = list(islice(EpochPlans(buckets).batches_from(position), 10))
    for (batch, following), (expected, expected_following) in zip(
        resumed, unbroken[done:], strict=True
    ):
        assert batch.tolist() == expected.tolist()
        assert following == expected_following


def test_each_plan_is_made_once_and_before_its_epoch_begins(monkeypatch):
    made: dict[int, threading.Event] = defaultdict(threading.Event)
    plan = Bucketing.plan

    def recorded(buckets: Bucketing, epoch: int):
        assert not made[epoch].is_set(), "a plan is made again"
        made[epoch].set()
        return plan(buckets, epoch)

    monkeypatch.setattr(Bucketing, "plan", recorded)
    plans = EpochPlans(bucketing([(3, 3)] * 40, 6))
    num_batches = len(plans[0])
    assert num_batches == 20
    unbroken = list(islice(plans.batches_from(DataPosition()), 10))
    # Begun anew, as after a batch that is left out.
    batches = plans.batches_from(unbroken[-1][1])
    next(batches)
    assert list(made) == [0]
    *_, (_, last) = islice(batches, 8)
    assert last == DataPosition(0, 19)
    # One batch is left of the epoch.
    assert made[1].wait(timeout=10)
    assert next(batches)[1] == DataPosition(1, 0)
    assert next(batches)[1] == DataPosition(1, 1)
    assert list(made) == [0, 1]


@given(st.lists(st.floats(0.1, 4.0), min_size=1, max_size=50), seeds)
def test_a_weight_is_rounded_up_or_down_in_each_epoch(weights, seed):
    pairs = [(3, 3)] * len(weights)
    plan = bucketing(pairs, 12, seed, weights).plan(0) if sum(weights) >= len(weights) else []
    samples = sorted(np.concatenate(plan).tolist()) if plan else []
    assert len(samples) == len(set(samples))
    for index, weight in enumerate(weights if plan else []):
        own = [sample for sample in samples if sample % len(weights) == index]
        assert len(own) in (np.floor(weight), np.ceil(weight))
        # Each time that the epoch has an example has a number of its own.
        assert own == [index + len(weights) * time for time in range(len(own))]


def test_numbers_of_samples_may_need_64_bits():
    weights = PairWeights.of_runs([3000, 1], [1.0, 1e6])
    (batch,) = Bucketing(*np.ones((2, 3001), int), weights, 10**7, 1).plan(0)
    assert sorted(batch[batch % 3001 == 3000]) == list(range(3000, 3001 * 10**6, 3001))


def test_weights_hold_on_average_over_epochs():
    weights = [0.5, 1.0, 2.25]
    buckets = bucketing([(3, 3)] * 3, 12, 1, weights)
    times = sum(
        np.bincount(np.concatenate(buckets.plan(epoch)) % 3, minlength=3) for epoch in range(2000)
    )
    np.testing.assert_allclose(times / 2000, weights, atol=0.05)


def test_epochs_differ_in_order_and_company():
    lengths = [(n % 7 + 1, n % 5 + 1) for n in range(200)]
    buckets = bucketing(lengths, 40)
    companies = [{frozenset(batch.tolist()) for batch in buckets.plan(epoch)} for epoch in (0, 1)]
    assert len(companies[0] & companies[1]) < len(companies[0]) / 4


def test_batches_hold_sentences_of_similar_length():
    random = np.random.default_rng(0)
    lengths = random.integers(1, 60, size=3000)
    pairs = list(zip(lengths, np.maximum(1, lengths + random.integers(-3, 4, 3000)), strict=True))
    plan = bucketing(pairs, 1000).plan(0)
    real = sum(target for _, target in pairs)
    padded = sum(len(batch) * max(pairs[i][1] for i in batch) for batch in plan)
    assert real / padded > 0.9


def planned_one_by_one(buckets: Bucketing, epoch: int) -> list[list[int]]:
    """The same batches, example after example."""
    random = np.random.default_rng((buckets.seed, epoch))
    times = np.floor(buckets.weights).astype(int)
    times += random.random(len(times)) < buckets.weights - times
    order = random.permutation(np.repeat(np.arange(len(times)), times)).tolist()
    source, target = buckets.source_lengths.tolist(), buckets.target_lengths.tolist()
    mean_length = np.mean([target[i] for i in order])
    pool_size = int(POOL_BATCHES * buckets.batch_tokens / mean_length)
    batches = []
    for start in range(0, len(order), pool_size):
        pool = order[start : start + pool_size]
        pool.sort(key=lambda i: (max(source[i], target[i]), source[i] + target[i]))
        batch: list[int] = []
        for i in pool:
            widest = max(max(source[j], target[j]) for j in (*batch, i))
            if batch and (len(batch) + 1) * widest > buckets.batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(i)
        batches.append(batch)
    return [batches[i] for i in random.permutation(len(batches))]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=300),
    st.integers(1, 120),
    seeds,
    st.integers(0, 3),
    st.integers(1, 400),
    st.data(),
)
def test_the_plan_is_the_one_of_a_walk_example_by_example(
    pairs, budget, seed, epoch, slice_size, data
):
    weight = st.sampled_from([1.0, 1.5, 2.25])
    weights = data.draw(st.lists(weight, min_size=len(pairs), max_size=len(pairs)))
    expected = planned_one_by_one(bucketing(pairs, budget, seed, weights), epoch)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "SLICE", slice_size)
        plan = bucketing(
            pairs, budget, seed, PairWeights.of_runs([1] * len(weights), weights)
        ).plan(epoch)
    assert [(batch % len(pairs)).tolist() for batch in plan] == expected
    assert all(batch.dtype == np.int32 for batch in plan)


@pytest.mark.parametrize("longest", [100, 2**15 - 2, 40_000, 70_000])
def test_the_plan_does_not_depend_on_the_integers_of_the_lengths(longest):
    source, target = np.full(12, longest), np.linspace(1, longest, 12).astype(int)[::-1]
    sides = [(np.zeros(x.sum(), np.uint16), np.cumsum([0, *x])) for x in (source, target)]
    weights = PairWeights.of_runs([12], [1.0])
    budget = 2 * (longest + 1)
    plan = epoch_plans(TokenStore(*sides[0], *sides[1], weights), batch_tokens=budget, seed=1)[0]
    expected = Bucketing(source + 1, target + 1, weights, budget, 1).plan(0)
    assert [batch.tolist() for batch in plan] == [batch.tolist() for batch in expected]
    assert [len(batch) for batch in plan] == [2] * 6
