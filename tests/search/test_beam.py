"""Beam search against exhaustive search, and against CTranslate2's rules written out row by row."""

import itertools
from decimal import ROUND_HALF_UP, Decimal

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
    search_tables,
)

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig
from tformer_cli.search.beam import BeamSearch
from tformer_cli.search.sample import GreedySearch

seeds = st.integers(0, 10_000)


def search(tables, config, nbest=1, num_slots=None):
    return search_tables(tables, BeamSearch(config, SPECIAL_TOKENS, CPU, nbest=nbest), num_slots)


def all_translations(table, max_length, length_penalty):
    """The score of every sequence there is up to the length limit."""
    found = {}
    for length in range(1, max_length + 1):
        for row in itertools.product(range(len(table)), repeat=length):
            is_whole = row[-1] == END or length == max_length
            if START in row or END in row[:-1] or not is_whole:
                continue
            total, last = 0.0, START
            for position, token in enumerate(row):
                total += next_log_probs(table, last, is_first=position == 0)[token]
                last = token
            if total > -float("inf"):
                ids = row[:-1] if row[-1] == END else row
                found[ids] = total / length**length_penalty
    return found


@given(seeds, st.sampled_from([0.6, 1.0, 1.5]))
def test_a_beam_that_holds_everything_finds_the_best_translations(seed, length_penalty):
    tables = random_tables(seed, sentences=2, vocab_size=4)
    everything = 2 * 3**3
    config = BeamConfig(
        beam_size=everything, patience=10.0, length_penalty=length_penalty, max_length=4
    )
    for hypotheses, table in zip(search(tables, config, nbest=5), tables, strict=True):
        scores = all_translations(table, 4, length_penalty)
        best = sorted(scores.values(), reverse=True)[:5]
        # Sequences that take the same transitions tie, so ids are compared through their scores.
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(best, rel=1e-5)
        assert [scores[hypothesis.token_ids] for hypothesis in hypotheses] == pytest.approx(best)
        assert len({hypothesis.token_ids for hypothesis in hypotheses}) == 5


def rounded(number):
    """A positive number as std::round of C++ rounds it: half a one upwards."""
    return int(Decimal(number).quantize(Decimal(1), ROUND_HALF_UP))


def by_the_rules(table, config, nbest):
    """CTranslate2's beam search of one sentence, with lists instead of tensors."""
    live, stored, top_ended = [((START,), 0.0)], [], False
    for length in range(1, config.max_length + 1):
        is_last = length == config.max_length
        continuations = [
            ((*row, token), total + log_prob)
            for row, total in live
            for token, log_prob in enumerate(next_log_probs(table, row[-1], is_first=len(row) == 1))
        ]
        continuations.sort(key=lambda item: -item[1])
        candidates = continuations[: 2 * config.beam_size]
        substitutes = [item for item in candidates[config.beam_size :] if item[0][-1] != END]
        live = []
        for rank, (row, total) in enumerate(candidates[: config.beam_size]):
            if total == -float("inf"):
                continue
            if row[-1] == END or is_last:
                ids = row[1:-1] if row[-1] == END else row[1:]
                stored.append((total / length**config.length_penalty, ids))
                top_ended |= rank == 0
                if substitutes:
                    live.append(substitutes.pop(0))
            else:
                live.append((row, total))
        if config.length_penalty == config.coverage_penalty == 0:
            is_done = top_ended and len(stored) >= nbest
        else:
            is_done = len(stored) >= rounded(config.beam_size * config.patience)
        if is_done or is_last:
            break
    return sorted(stored, key=lambda item: -item[0])[:nbest]


def transitions(ids):
    """What the score of a sequence depends on: those with the same ones tie."""
    return sorted(itertools.pairwise((START, *ids)))


@given(
    seeds,
    st.integers(1, 4),
    st.sampled_from([0.0, 0.6, 1.0]),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(1, 12),
)
def test_beam_search_follows_the_rules_of_ctranslate2(
    seed, size, length_penalty, patience, max_length
):
    tables = random_tables(seed, sentences=3, vocab_size=7)
    config = BeamConfig(
        beam_size=size, length_penalty=length_penalty, patience=patience, max_length=max_length
    )
    nbest = min(size, max(1, round(size * patience)))
    for hypotheses, table in zip(search(tables, config, nbest), tables, strict=True):
        expected = by_the_rules(table, config, nbest)
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == pytest.approx([score for score, _ in expected], rel=1e-5)
        found = [hypothesis.token_ids for hypothesis in hypotheses]
        # Rounding decides the order of a tie.
        assert list(map(transitions, found)) == [transitions(ids) for _, ids in expected]
        assert len(set(found)) == len(found)


@given(seeds, st.sampled_from([0.0, 0.6]), st.sampled_from([0.5, 1.0, 2.0]))
def test_with_a_coverage_penalty_all_that_are_stored_come_out(seed, length_penalty, patience):
    tables = random_tables(seed, sentences=2, vocab_size=8)
    # Ids ascend, so no two sequences take the same transitions and tie.
    tables[:, :, END + 1 :] += torch.full((8, 8), -torch.inf).tril()[:, END + 1 :]
    config = BeamConfig(
        beam_size=5,
        length_penalty=length_penalty,
        patience=patience,
        max_length=8,
        coverage_penalty=0.5,
    )
    for hypotheses, table in zip(search(tables, config), tables, strict=True):
        expected = by_the_rules(table, config, nbest=None)
        assert [hypothesis.token_ids for hypothesis in hypotheses] == [ids for _, ids in expected]
        assert len(hypotheses) >= 3


@given(seeds)
def test_a_beam_of_one_is_greedy_search(seed):
    tables = random_tables(seed, sentences=4, vocab_size=6)
    greedy = search_tables(tables, GreedySearch(GreedyConfig(max_length=8), SPECIAL_TOKENS, CPU))
    beam = search(tables, BeamConfig(beam_size=1, max_length=8))
    assert [best.token_ids for (best,) in beam] == [found.token_ids for (found,) in greedy]


@given(seeds, st.integers(1, 4), st.integers(1, 4))
def test_the_rest_of_the_batch_changes_nothing(seed, size, num_slots):
    tables = random_tables(seed, sentences=5, vocab_size=6)
    config = BeamConfig(beam_size=size, max_length=9)
    together = search(tables, config, num_slots=num_slots)
    alone = [search(tables[n : n + 1], config)[0] for n in range(5)]
    assert [best.token_ids for (best,) in together] == [best.token_ids for (best,) in alone]


@given(
    seeds,
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([{"repetition_penalty": 1.5}, {"frequency_penalty": 2.0}]),
)
def test_a_reused_slot_has_none_of_the_tokens_of_another_sentence(seed, size, num_slots, penalty):
    # A hypothesis of a single token ends in the step that begins it.
    tables = random_tables(seed, sentences=9, vocab_size=6)
    config = BeamConfig(beam_size=size, max_length=1, **penalty)
    together = search(tables, config, num_slots=num_slots)
    alone = [search(tables[n : n + 1], config)[0] for n in range(9)]
    for (one,), (other,) in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.score == pytest.approx(other.score)


def test_a_hypothesis_cut_at_the_length_limit_says_that_it_is_not_finished():
    tables = random_tables(1, sentences=1, vocab_size=5)
    tables[:, :, END] = -50.0
    ((best,),) = search(tables, BeamConfig(beam_size=2, max_length=4))
    assert not best.finished
    assert len(best.token_ids) == 4
