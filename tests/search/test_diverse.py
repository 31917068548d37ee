"""Diverse beam search against its rules written out with lists, and what must be true of it."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search.tables import (
    CPU,
    END,
    SPECIAL_TOKENS,
    START,
    ascending_tables,
    next_log_probs,
    random_tables,
    search_requests,
    search_tables,
)
from search.test_engine import native_engine, requests

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.beam import BeamSearch, DiverseBeamSearch
from tformer_cli.search.engine import Request

seeds = st.integers(0, 10_000)
shapes = st.tuples(st.integers(2, 3), st.integers(1, 3))  # groups, rows of each


def search(tables, config, nbest=1, num_slots=None):
    return search_tables(
        tables, DiverseBeamSearch(config, SPECIAL_TOKENS, CPU, nbest=nbest), num_slots
    )


class GroupByHand:
    """A group of one sentence: rows as (ids, log probability, what it has lost)."""

    def __init__(self, config, nbest):
        self.size = config.beam_size // config.num_beam_groups
        self.config, self.nbest = config, min(nbest, self.size)
        self.live, self.stored, self.top_ended = [((START,), 0.0, 0.0)], [], False

    def step(self, table, length, chosen):
        """Go on by a token; return which tokens it chooses."""
        continuations = [
            (
                (*row, token),
                total + log_prob,
                lost + self.config.diversity_penalty * chosen.count(token),
            )
            for row, total, lost in self.live
            for token, log_prob in enumerate(next_log_probs(table, row[-1], is_first=length == 1))
            if log_prob > -math.inf
        ]
        continuations.sort(key=lambda item: item[2] - item[1])
        best, rest = continuations[: self.size], continuations[self.size : 2 * self.size]
        substitutes = [item for item in rest if item[0][-1] != END]
        self.live = []
        for rank, (row, total, lost) in enumerate(best):
            if row[-1] == END or length == self.config.max_length:
                ids = row[1:-1] if row[-1] == END else row[1:]
                self.stored.append((total / length**self.config.length_penalty, ids))
                self.top_ended |= rank == 0
                self.live += substitutes[:1]
                del substitutes[:1]
            else:
                self.live.append((row, total, lost))
        return [row[-1] for row, _, _ in best]

    def is_done(self):
        if self.config.length_penalty == 0:
            return self.top_ended and len(self.stored) >= self.nbest
        enough = max(self.nbest, round(self.size * self.config.patience))
        return len(self.stored) >= enough


def by_the_rules(table, config, nbest):
    groups = [GroupByHand(config, nbest) for _ in range(config.num_beam_groups)]
    at_work = list(groups)
    for length in range(1, config.max_length + 1):
        chosen = []
        for group in at_work:
            chosen += group.step(table, length, chosen)
        at_work = [group for group in at_work if not group.is_done()]
    found = {}
    for group in groups:
        best = sorted(group.stored, key=lambda item: -item[0])[: group.nbest]
        found.update((ids, score) for score, ids in best)
    return sorted(found.items(), key=lambda item: -item[1])[:nbest]


@given(
    seeds,
    shapes,
    st.sampled_from([0.0, 0.3, 2.0]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(1, 9),
    st.integers(1, 4),
)
def test_diverse_beam_search_follows_its_rules(
    seed, shape, diversity, length_penalty, patience, max_length, nbest
):
    tables = ascending_tables(seed, sentences=2, vocab_size=9)
    config = BeamConfig(
        beam_size=shape[0] * shape[1],
        num_beam_groups=shape[0],
        diversity_penalty=diversity,
        length_penalty=length_penalty,
        patience=patience,
        max_length=max_length,
    )
    for hypotheses, table in zip(search(tables, config, nbest, 1), tables, strict=True):
        expected = by_the_rules(table, config, nbest)
        assert [one.token_ids for one in hypotheses] == [ids for ids, _ in expected]
        scores = [one.score for one in hypotheses]
        assert scores == pytest.approx([score for _, score in expected], rel=1e-5)


@settings(max_examples=10)
@given(seeds, shapes, st.sampled_from([0.0, 1.0]))
def test_groups_that_need_not_differ_find_what_a_beam_of_their_size_finds(
    seed, shape, length_penalty
):
    groups, size = shape
    tables = ascending_tables(seed, sentences=3, vocab_size=7)
    plain = BeamConfig(beam_size=size, length_penalty=length_penalty, max_length=8)
    config = replace(plain, beam_size=groups * size, num_beam_groups=groups, diversity_penalty=0.0)
    expected = search_tables(tables, BeamSearch(plain, SPECIAL_TOKENS, CPU, nbest=size))
    assert search(tables, config, groups * size) == expected


@settings(max_examples=8)
@given(seeds, shapes, st.integers(1, 4))
def test_the_first_group_is_a_beam_of_its_own(seed, shape, num_slots):
    groups, size = shape
    tables = ascending_tables(seed, sentences=4, vocab_size=7)
    plain = BeamConfig(beam_size=size, max_length=8)
    config = replace(plain, beam_size=groups * size, num_beam_groups=groups, diversity_penalty=1.0)
    found = search(tables, config, groups * size, num_slots)
    expected = search_tables(tables, BeamSearch(plain, SPECIAL_TOKENS, CPU))
    for own, all_of_them in zip(expected, found, strict=True):
        assert own[0].token_ids in {one.token_ids for one in all_of_them}


@settings(max_examples=8)
@given(seeds, shapes, st.integers(1, 4))
def test_the_rest_of_the_batch_changes_nothing(seed, shape, num_slots):
    tables = random_tables(seed, sentences=5, vocab_size=7)
    config = BeamConfig(beam_size=shape[0] * shape[1], num_beam_groups=shape[0], max_length=9)
    together = search(tables, config, config.beam_size, num_slots)
    alone = [search(tables[n : n + 1], config, config.beam_size)[0] for n in range(5)]
    for one, two in zip(together, alone, strict=True):
        assert [best.token_ids for best in one] == [best.token_ids for best in two]


def test_with_a_model_the_size_of_batches_changes_nothing():
    engine, inputs = native_engine(), requests(8)
    config = BeamConfig(beam_size=6, num_beam_groups=3, max_length=10)
    expected = engine.translate(inputs, config, nbest=6)
    for num_beams in (1, 13):
        engine.max_slots = num_beams
        found = engine.translate(inputs, config, nbest=6)
        assert [[one.token_ids for one in many] for many in found] == [
            [one.token_ids for one in many] for many in expected
        ]


def test_groups_begin_with_different_words_where_that_costs_less_than_their_diversity():
    tables = random_tables(3, sentences=6, vocab_size=9)
    config = BeamConfig(beam_size=4, num_beam_groups=4, diversity_penalty=100.0, max_length=9)
    for hypotheses in search(tables, config, 4):
        assert len({one.token_ids[0] for one in hypotheses}) == 4
    same = search(tables, replace(config, diversity_penalty=0.0), 4)
    assert [len(hypotheses) for hypotheses in same] == [1] * 6


def test_the_score_does_not_count_what_a_row_has_lost():
    tables = random_tables(3, sentences=6, vocab_size=9)
    config = BeamConfig(
        beam_size=4, num_beam_groups=2, diversity_penalty=3.0, max_length=9, length_penalty=0.6
    )
    for hypotheses in search(tables, config, 4):
        scores = [one.score for one in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for one in hypotheses:
            length = len(one.token_ids) + one.finished
            assert one.score == pytest.approx(one.log_prob / length**0.6, rel=1e-4)


@settings(max_examples=8)
@given(seeds, st.integers(1, 3))
def test_groups_keep_to_prefixes_and_limits(seed, num_slots):
    tables = random_tables(seed, sentences=3, vocab_size=9)
    inputs = [
        Request((number, 2, 2, END), prefix=(5, 2 + number), banned=((4,),), number=number)
        for number in range(3)
    ]
    config = BeamConfig(
        beam_size=4, num_beam_groups=2, min_length=4, max_length=6, no_repeat_ngram_size=2
    )
    beam = DiverseBeamSearch(config, SPECIAL_TOKENS, CPU, nbest=4)
    for request, hypotheses in zip(
        inputs, search_requests(tables, beam, inputs, num_slots), strict=True
    ):
        for one in hypotheses:
            assert one.token_ids[:2] == request.prefix
            assert 4 not in one.token_ids[2:]
            assert 4 <= len(one.token_ids) <= 6
