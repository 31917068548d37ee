"""Penalties and bans beside those of transformers, and rules that hold for every search."""

import itertools
import math
from dataclasses import replace

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
)
from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from tformer_cli.config.schema.decoding import BeamConfig, GreedyConfig, SampleConfig
from tformer_cli.config.schema.fields import check
from tformer_cli.search.beam import BeamSearch
from tformer_cli.search.engine import Job, Request
from tformer_cli.search.logits_processors import (
    LogitsProcessor,
    ban_phrase,
    ban_repeated_ngrams,
    penalize_frequency,
    penalize_repetition,
)
from tformer_cli.search.native_engine import build_search
from tformer_cli.search.sample import GreedySearch, SampleSearch
from tformer_cli.search.state import Sequences

V, K = 7, 2


def written(histories: list[list[list[int]]]) -> Sequences:
    """Sequences in slots of different lengths, with leftovers behind the shorter ones."""
    processor = LogitsProcessor(GreedyConfig(), SPECIAL_TOKENS, CPU)
    rows = processor.start([Request((END,))] * len(histories), K)
    rows.tokens = torch.randint(1, V, (len(histories), K, 12))
    rows.tokens[:, :, 0] = START
    for slot, slot_rows in enumerate(histories):
        rows.lengths[slot] = len(slot_rows[0])
        for number, row in enumerate(slot_rows):
            rows.tokens[slot, number, 1 : len(row) + 1] = torch.tensor(row)
    return rows


def scores(count: int) -> torch.Tensor:
    scores = torch.randn(count, K, V).log_softmax(-1)
    scores[..., START] = -torch.inf
    return scores


lengths = st.lists(st.integers(0, 11), min_size=1, max_size=4)


@st.composite
def histories(draw: st.DrawFn) -> list[list[list[int]]]:
    token = st.integers(1, V - 1)
    return [
        [draw(st.lists(token, min_size=length, max_size=length)) for _ in range(K)]
        for length in draw(lengths)
    ]


@given(histories(), st.sampled_from([0.5, 1.3, 2.0]))
def test_repetition_is_penalized_as_in_transformers(histories, penalty):
    before = scores(len(histories))
    after = before.clone()
    penalize_repetition(after, written(histories), penalty)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    for slot, rows in enumerate(histories):
        expected = before[slot]
        if rows[0]:
            expected = theirs(torch.tensor(rows), expected)
        torch.testing.assert_close(after[slot], expected)


@given(histories(), st.integers(1, 4))
def test_repeated_ngrams_are_banned_as_in_transformers(histories, size):
    before = scores(len(histories))
    after = before.clone()
    ban_repeated_ngrams(after, written(histories), size)
    theirs = NoRepeatNGramLogitsProcessor(size)
    for slot, rows in enumerate(histories):
        expected = before[slot]
        if len(rows[0]) >= size:
            expected = theirs(torch.tensor(rows), expected)
        assert torch.equal(after[slot], expected)


@pytest.mark.parametrize("size", [12, 13, 100])
def test_ngrams_longer_than_all_rows_ban_nothing(size):
    rows = written([[[1] * 11] * K])
    before = scores(1)
    after = before.clone()
    ban_repeated_ngrams(after, rows, size)
    assert torch.equal(after, before)


@given(histories())
def test_frequency_penalty_counts_each_occurrence(histories):
    before = scores(len(histories))
    after = before.clone()
    penalize_frequency(after, written(histories), 0.25)
    for slot, rows in enumerate(histories):
        for number, row in enumerate(rows):
            counts = torch.tensor([row.count(token) for token in range(V)])
            expected = before[slot, number] - 0.25 * counts
            torch.testing.assert_close(after[slot, number], expected)


@pytest.mark.parametrize(
    ("row", "phrase", "is_banned"),
    [
        ([], [4], True),
        ([5, 6], [4], True),
        ([5, 6], [6, 4], True),
        ([5, 6], [5, 6, 4], True),
        ([6, 5], [6, 4], False),
        ([6], [5, 6, 4], False),
    ],
)
def test_a_phrase_is_banned_where_its_beginning_is_written(row, phrase, is_banned):
    rows = torch.tensor([row, [1] * len(row)], dtype=torch.long)
    before = scores(1)[0]
    after = before.clone()
    ban_phrase(after, rows, phrase)
    assert (after[0, 4] == -torch.inf) == is_banned
    assert (after[1, 4] == -torch.inf) == (len(phrase) == 1)
    after[:, 4] = before[:, 4]
    assert torch.equal(after, before)


tokens = st.integers(2, V - 1)
phrases = st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple)
settings = st.fixed_dictionaries(
    {
        "max_length": st.integers(1, 12),
        "max_length_ratio": st.sampled_from([None, 0.5, 2.0]),
        "min_length": st.integers(1, 5),
        "min_length_ratio": st.sampled_from([0.0, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.7]),
        "no_repeat_ngram_size": st.integers(0, 3),
    }
)
requests = st.lists(
    st.builds(
        lambda number, length, prefix, banned: ([2] * length, tuple(prefix), banned),
        st.integers(0, 9),
        st.integers(1, 4),
        st.lists(tokens, max_size=3),
        phrases,
    ),
    min_size=1,
    max_size=4,
)
searches = {
    "greedy": lambda rules: GreedySearch(GreedyConfig(**rules), SPECIAL_TOKENS, CPU),
    "beam": lambda rules: BeamSearch(
        BeamConfig(beam_size=3, **rules), SPECIAL_TOKENS, CPU, nbest=2
    ),
    "sample": lambda rules: SampleSearch(SampleConfig(**rules), SPECIAL_TOKENS, CPU, nbest=2),
}


def asked(parts) -> list[Request]:
    return [
        Request((number, *source, END), prefix=prefix, banned=banned, number=number)
        for number, (source, prefix, banned) in enumerate(parts)
    ]


def log_prob(table, ids, finished):
    """What the table says of a translation, rules or none."""
    row = [START, *ids, *([END] if finished else [])]
    return sum(
        next_log_probs(table, last, is_first=position == 0)[token]
        for position, (last, token) in enumerate(itertools.pairwise(row))
    )


def contains(ids, phrase, start):
    positions = range(max(0, start - len(phrase) + 1), len(ids) - len(phrase) + 1)
    return any(tuple(ids[position : position + len(phrase)]) == phrase for position in positions)


def is_stuck(request, rules, ids, position):
    """Whether no token but the end was allowed at a position, so that the row could only end."""
    n = rules["no_repeat_ngram_size"]
    for token in range(2, V):
        row = (*ids[:position], token)
        grams = [row[i : i + n] for i in range(len(row) - n + 1)] if n else []
        is_repeated = n > 0 and len(row) >= n and row[-n:] in grams[:-1]
        is_banned = any(len(row) >= len(p) and row[-len(p) :] == p for p in request.banned)
        if not (is_repeated or is_banned):
            return False
    return True


@given(st.sampled_from(sorted(searches)), settings, requests, st.integers(0, 1000))
def test_translations_keep_to_all_rules(kind, rules, parts, seed):
    inputs = asked(parts)
    tables = random_tables(seed, sentences=len(inputs), vocab_size=V)
    found = search_requests(tables, searches[kind](rules), inputs)
    for request, hypotheses, table in zip(inputs, found, tables, strict=True):
        assert hypotheses
        length = len(request.source) - 1
        most = rules["max_length"]
        if rules["max_length_ratio"] is not None:
            most = min(most, int(-(-rules["max_length_ratio"] * length // 1)) + 1)
        most = max(most, len(request.prefix) + 1)
        least = max(rules["min_length"], int(-(-rules["min_length_ratio"] * length // 1)))
        for one in hypotheses:
            ids = one.token_ids
            assert len(ids) + one.finished <= most
            assert one.finished or len(ids) == most
            assert ids[: len(request.prefix)] == request.prefix
            free = ids[len(request.prefix) :]
            assert len(ids) >= min(least, most - 1) or is_stuck(request, rules, ids, len(ids))
            for phrase in request.banned:
                if free:
                    assert not contains(ids, phrase, len(request.prefix) + len(phrase) - 1)
            n = rules["no_repeat_ngram_size"]
            if n:
                for position in range(max(len(request.prefix), n), len(ids)):
                    earlier = [ids[i : i + n] for i in range(position - n + 1)]
                    assert ids[position - n + 1 : position + 1] not in earlier
            assert one.log_prob == pytest.approx(log_prob(table, ids, one.finished), rel=1e-4)


@given(st.sampled_from(sorted(searches)), settings, requests, st.integers(1, 3))
def test_the_rest_of_the_batch_changes_nothing(kind, rules, parts, num_slots):
    inputs = asked(parts)
    tables = random_tables(3, sentences=len(inputs), vocab_size=V)
    together = search_requests(tables, searches[kind](rules), inputs)
    few = search_requests(tables, searches[kind](rules), inputs, num_slots)
    for one, two in zip(together, few, strict=True):
        assert [h.token_ids for h in one] == [h.token_ids for h in two]


@pytest.mark.parametrize("kind", searches)
def test_the_shortest_translation_is_as_short_as_it_may_be(kind):
    tables = random_tables(6, sentences=3, vocab_size=V)
    # Whoever may end does.
    tables[:, :, END] = 60.0
    inputs = asked([([2] * length, (), ()) for length in (1, 3, 5)])
    for rules, expected in (
        ({"min_length": 4}, [4, 4, 4]),
        ({"min_length": 2, "min_length_ratio": 1.0}, [2, 4, 6]),
    ):
        found = search_requests(tables, searches[kind](rules), inputs)
        assert [len(best.token_ids) for best, *_ in found] == expected
        assert all(best.finished for best, *_ in found)


@pytest.mark.parametrize("kind", searches)
def test_ratios_of_lengths_leave_out_the_token_of_a_language(kind):
    tables = random_tables(6, sentences=3, vocab_size=V)
    inputs = [replace(each, start=(2,)) for each in asked([([2] * n, (), ()) for n in (0, 1, 3)])]
    for last, rules in ((60.0, {"min_length_ratio": 2.0}), (-60.0, {"max_length_ratio": 2.0})):
        # Whoever may end does, or ends only at the limit.
        tables[:, :, END] = last
        found = search_requests(tables, searches[kind](rules), inputs)
        lengths = [len(best.token_ids) - 1 for best, *_ in found]
        # At the limit the last token stands where EOS had room.
        assert lengths == ([2, 4, 8] if last > 0 else [3, 5, 9])


@pytest.mark.parametrize("kind", searches)
def test_a_row_that_nothing_else_is_left_for_ends_before_the_shortest_length(kind):
    tables = random_tables(7, sentences=2, vocab_size=V)
    rules = {"no_repeat_ngram_size": 1, "min_length": 9, "max_length": 12}
    found = search_requests(tables, searches[kind](rules), asked([([2], (), ())] * 2))
    for table, hypotheses in zip(tables, found, strict=True):
        for one in hypotheses:
            assert one.finished
            assert sorted(one.token_ids) == [2, 3, 4, 5, 6]
            assert one.log_prob == pytest.approx(log_prob(table, one.token_ids, True), rel=1e-4)


FARTHEST = {
    "greedy": lambda rules: GreedyConfig(**rules),
    "beam": lambda rules: BeamConfig(beam_size=4, length_penalty=10, patience=1000, **rules),
    "diverse": lambda rules: BeamConfig(
        beam_size=4, num_beam_groups=2, diversity_penalty=1000, **rules
    ),
    "careful": lambda rules: SampleConfig(temperature=0.001, top_p=1e-6, **rules),
    "reckless": lambda rules: SampleConfig(temperature=1000, **rules),
}


@pytest.mark.parametrize("repetition_penalty", [0.001, 1000])
@pytest.mark.parametrize("kind", FARTHEST)
def test_searches_work_at_the_limits_of_their_numbers(kind, repetition_penalty):
    config = FARTHEST[kind](
        {
            "max_length": 40,
            "min_length_ratio": 1000,
            "max_length_ratio": 1000,
            "repetition_penalty": repetition_penalty,
            "frequency_penalty": 1000,
        }
    )
    assert not list(check(config))
    table = random_tables(5, sentences=1, vocab_size=V)
    search = build_search(Job([], config, 1, True), SPECIAL_TOKENS, CPU)
    ((found,),) = search_requests(table, search, asked([([2], (), ())]))
    assert len(found.token_ids) >= 39
    assert math.isfinite(found.score)
    assert found.log_prob == pytest.approx(
        log_prob(table[0], found.token_ids, found.finished), rel=1e-4
    )


def test_penalties_change_the_score_and_not_the_probability():
    tables = random_tables(5, sentences=1, vocab_size=V)
    tables[:, :, END] = -3.0
    rules = {"max_length": 9, "frequency_penalty": 0.5}
    ((hypothesis,),) = search_requests(tables, searches["greedy"](rules), asked([([2], (), ())]))
    repeats = sum(
        hypothesis.token_ids[:position].count(token)
        for position, token in enumerate(hypothesis.token_ids)
    )
    assert repeats > 0
    assert hypothesis.score == pytest.approx(hypothesis.log_prob - 0.5 * repeats, rel=1e-5)
    assert torch.isfinite(torch.tensor(hypothesis.log_prob))
