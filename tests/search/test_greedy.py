import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.tables import (
    CPU,
    END,
    SPECIAL_TOKENS,
    START,
    next_log_probs,
    random_tables,
    search_tables,
)

from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.search.greedy import GreedySearch


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
