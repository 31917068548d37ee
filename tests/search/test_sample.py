"""Greedy search takes the best tokens; draws follow their distribution, and nothing else."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from search.tables import (
    CPU,
    END,
    SPECIAL_TOKENS,
    START,
    next_log_probs,
    random_tables,
    search_requests,
    search_tables,
)

from tformer_cli.config.schema.decoding import GreedyConfig, SampleConfig
from tformer_cli.search.engine import Request
from tformer_cli.search.sample import MAX_TREE_DEPTH, GreedySearch, SampleSearch, sample_categorical

V, COUNT = 6, 4000


def by_hand(table, max_length):
    """The greedy path of one sentence, one token after the other."""
    row, total = [START], 0.0
    while len(row) <= max_length and row[-1] != END:
        log_probs = next_log_probs(table, row[-1], is_first=len(row) == 1)
        best = max(range(len(log_probs)), key=log_probs.__getitem__)
        total += log_probs[best]
        row.append(best)
    finished = row[-1] == END
    return tuple(row[1:-1] if finished else row[1:]), total, finished


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 9))
def test_greedy_takes_the_best_token_at_each_step(seed, sentences, max_length):
    tables = random_tables(seed, sentences=sentences, vocab_size=6)
    search = GreedySearch(GreedyConfig(max_length=max_length), SPECIAL_TOKENS, CPU)
    found = search_tables(tables, search)
    for (hypothesis,), table in zip(found, tables, strict=True):
        ids, log_prob, finished = by_hand(table, max_length)
        assert hypothesis.token_ids == ids
        assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-5)
        assert hypothesis.finished == finished


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_tokens_are_the_same_when_no_scores_are_asked(seed, num_slots):
    tables = random_tables(seed, sentences=6, vocab_size=6)
    config = GreedyConfig(max_length=8)
    scored = search_tables(tables, GreedySearch(config, SPECIAL_TOKENS, CPU))
    bare = search_tables(tables, GreedySearch(config, SPECIAL_TOKENS, CPU, scored=False), num_slots)
    for (expected,), (found,) in zip(scored, bare, strict=True):
        assert found.token_ids == expected.token_ids
        assert found.finished == expected.finished
        assert math.isnan(found.log_prob)
        assert math.isnan(found.score)


def asked(count: int) -> list[Request]:
    return [Request((0, END), number=number) for number in range(count)]


def first_tokens(table: torch.Tensor, **options: float) -> torch.Tensor:
    """How often each token comes first among many lines."""
    search = SampleSearch(SampleConfig(max_length=1, **options), SPECIAL_TOKENS, CPU)
    found = search_requests(table, search, asked(COUNT))
    ids = torch.tensor([hypothesis.token_ids[0] for (hypothesis,) in found])
    return torch.bincount(ids, minlength=V) / COUNT


def distribution(table: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    log_probs = torch.tensor(next_log_probs(table[0], START, is_first=True))
    return (log_probs / temperature).softmax(-1)


def assert_follows(frequencies: torch.Tensor, expected: torch.Tensor) -> None:
    # Four standard deviations of a binomial share.
    bound = 4 * (expected * (1 - expected) / COUNT).sqrt()
    assert bool(((frequencies - expected).abs() <= bound + 1e-12).all())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_by_their_probability(temperature):
    table = random_tables(2, sentences=1, vocab_size=V)
    assert_follows(first_tokens(table, temperature=temperature), distribution(table, temperature))


def test_top_k_draws_among_the_most_probable():
    table = random_tables(2, sentences=1, vocab_size=V)
    expected = distribution(table)
    expected[expected < expected.topk(2).values[-1]] = 0
    assert_follows(first_tokens(table, top_k=2), expected / expected.sum())


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.5}])
def test_of_equally_probable_tokens_those_with_the_lowest_ids_are_drawn(options):
    table = torch.zeros((1, V, V))
    table[..., 2] = -1.0
    # Without the start token and the end token, ids 3, 4 and 5 are the most probable.
    expected = torch.tensor([0.0, 0.0, 0.0, 0.5, 0.5, 0.0])
    assert_follows(first_tokens(table, **options), expected)


def test_top_p_draws_among_the_fewest_that_reach_the_share():
    table = random_tables(4, sentences=1, vocab_size=V)
    probabilities = distribution(table)
    best, second = probabilities.topk(2).values.tolist()
    nucleus = torch.where(probabilities >= second, probabilities, 0.0)
    share = (best + (best + second)) / 2  # the first alone does not reach it
    assert_follows(first_tokens(table, top_p=share), nucleus / nucleus.sum())


@given(st.integers(0, 1000), st.sampled_from([{"top_k": 1}, {"top_p": 1e-6}]))
def test_the_narrowest_draw_is_greedy_search(seed, options):
    tables = random_tables(seed, sentences=3, vocab_size=V)
    inputs = [Request((number, END), number=number) for number in range(3)]
    greedy = search_requests(
        tables, GreedySearch(GreedyConfig(max_length=7), SPECIAL_TOKENS, CPU), inputs
    )
    config = SampleConfig(max_length=7, **options)
    found = search_requests(tables, SampleSearch(config, SPECIAL_TOKENS, CPU), inputs)
    assert [one.token_ids for (one,) in found] == [one.token_ids for (one,) in greedy]


def test_seeds_and_lines_and_samples_differ():
    table = random_tables(2, sentences=1, vocab_size=V)

    def translations(seed: int) -> list[list[tuple[int, ...]]]:
        search = SampleSearch(SampleConfig(max_length=12, seed=seed), SPECIAL_TOKENS, CPU, nbest=3)
        found = search_requests(table, search, asked(6))
        return [[one.token_ids for one in hypotheses] for hypotheses in found]

    assert translations(1) == translations(1)
    assert translations(1) != translations(2)
    several = {ids for hypotheses in translations(1) for ids in hypotheses}
    assert len(several) > 6


def test_samples_are_sorted_by_their_probability():
    table = random_tables(2, sentences=1, vocab_size=V)
    search = SampleSearch(SampleConfig(max_length=12), SPECIAL_TOKENS, CPU, nbest=4)
    for hypotheses in search_requests(table, search, asked(5)):
        scores = [one.score for one in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert [one.log_prob for one in hypotheses] == scores
        assert all(math.isfinite(score) for score in scores)


@given(st.lists(st.sampled_from([0.0, 1e-30, 0.1, 1.0]), min_size=1, max_size=9).filter(any))
def test_what_is_impossible_is_never_drawn(shares):
    probabilities = torch.tensor(shares).expand(1, 2, -1)
    below_one = 1 - 2**-24  # the highest number that is drawn
    noise = torch.stack((torch.zeros(MAX_TREE_DEPTH), torch.full((MAX_TREE_DEPTH,), below_one)))[
        None
    ]
    first, last = sample_categorical(probabilities, noise)[0].tolist()
    assert shares[first] > 0
    assert shares[last] > 0


@pytest.mark.parametrize("vocab_size", [1, 2, 5, 8, 37])
def test_shares_of_any_vocabulary_are_drawn_from(vocab_size):
    random = torch.Generator().manual_seed(vocab_size)
    shares = torch.rand(vocab_size, generator=random)
    noise = torch.rand((1, COUNT, MAX_TREE_DEPTH), generator=random)
    tokens = sample_categorical(shares.expand(1, COUNT, -1), noise)[0]
    assert_follows(torch.bincount(tokens, minlength=vocab_size) / COUNT, shares / shares.sum())


def test_the_last_digits_of_probabilities_change_hardly_any_draw():
    random = torch.Generator().manual_seed(1)
    shares = torch.rand((COUNT, 10_000), generator=random)
    other = shares * (1 + 1e-4 * torch.randn(10_000, generator=random))
    noise = torch.rand((COUNT, 1, MAX_TREE_DEPTH), generator=random)
    changed = sample_categorical(shares[:, None], noise) != sample_categorical(
        other[:, None], noise
    )
    # By a single number among the sums of all tokens it is some dozens.
    assert int(changed.sum()) <= 5
    bounds, moved = shares.double().cumsum(-1), other.double().cumsum(-1)
    number = noise[:, :, 0].double()
    positions = [torch.searchsorted(one, number * one[:, -1:]) for one in (bounds, moved)]
    assert int((positions[0] != positions[1]).sum()) > 20
