"""Constrained beam search against exhaustive search, and what holds of it whatever the beam."""

import itertools
from dataclasses import replace

import pytest
import torch
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
)
from search.test_engine import END as MODEL_END
from search.test_engine import START as MODEL_START
from search.test_engine import SUPPRESSED, native_engine
from search.test_engine import requests as sentences

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.beam import BeamSearch
from tformer_cli.search.engine import Request
from tformer_cli.search.required_phrases import (
    Candidate,
    ConstrainedBeam,
    ConstrainedBeamSearch,
    ConstraintState,
    allocate_banks,
    sort_by_met,
)
from tformer_cli.search.workers import WorkersEngine

seeds = st.integers(0, 10_000)


def required(highest, *, most=3, longest=3):
    phrase = st.lists(st.integers(2, highest), min_size=1, max_size=longest).map(tuple)
    return st.lists(phrase, max_size=most).map(tuple)


def search(tables, config, asked, nbest=1, num_slots=None):
    """Search a sentence of three tokens for each table."""
    requests = [
        Request((number, 5, 5, END), required=phrases, number=number, **more)
        for number, (phrases, more) in enumerate(asked)
    ]
    kind = ConstrainedBeamSearch(config, SPECIAL_TOKENS, CPU, nbest=nbest)
    return search_requests(tables, kind, requests, num_slots)


def occurrences(row, phrase):
    return sum(row[position : position + len(phrase)] == phrase for position in range(len(row)))


def num_met(row, phrases):
    return sum(min(phrases.count(one), occurrences(row, one)) for one in set(phrases))


def log_prob(table, ids, finished):
    row = [START, *ids, *([END] if finished else [])]
    return sum(
        next_log_probs(table, last, is_first=position == 0)[token]
        for position, (last, token) in enumerate(itertools.pairwise(row))
    )


def repeats(row, size):
    grams = [row[position : position + size] for position in range(len(row) - size + 1)]
    return len(set(grams)) < len(grams)


def all_translations(table, most, phrases, *, length_penalty, prefix=(), banned=(), no_repeat=0):
    """What a translation may be, with how much it meets and its score."""
    found = {}
    for length in range(1, most + 1):
        for ids in itertools.product(range(2, len(table)), repeat=length):
            finished = length < most
            if not (finished and num_met(ids, phrases) < len(phrases)):
                if ids[: len(prefix)] != prefix or any(occurrences(ids, one) for one in banned):
                    continue
                if no_repeat and repeats(ids, no_repeat):
                    continue
                score = log_prob(table, ids, finished) / (length + finished) ** length_penalty
                found[ids, finished] = (num_met(ids, phrases), score)
    return found


@given(
    seeds,
    required(3),
    st.sampled_from([0.0, 0.6, 1.0]),
    st.sampled_from(["nothing", "prefix", "banned", "no_repeat"]),
)
def test_a_beam_that_holds_everything_finds_the_best_that_contain_the_phrases(
    seed, phrases, length_penalty, besides
):
    table = random_tables(seed, sentences=1, vocab_size=4)
    rule = {
        "nothing": {},
        "prefix": {"prefix": (3, 2)},
        "banned": {"banned": ((3, 3), (2, 2, 2))},
        "no_repeat": {"no_repeat": 3},
    }[besides]
    limit = 5
    most = max(limit, len(rule.get("prefix", ())) + sum(map(len, phrases)) + 1)
    if most > 8:
        phrases, most = phrases[:1], limit + 1
    config = BeamConfig(
        beam_size=2**8,
        patience=50.0,
        length_penalty=length_penalty,
        max_length=most,
        no_repeat_ngram_size=rule.get("no_repeat", 0),
    )
    more = {key: value for key, value in rule.items() if key != "no_repeat"}
    (found,) = search(table, config, [(phrases, more)], nbest=4)
    every = all_translations(table[0], most, phrases, length_penalty=length_penalty, **rule)
    highest, _ = max(every.values())
    expected = sorted((score for num, score in every.values() if num == highest), reverse=True)
    if length_penalty == 0:
        expected, found = expected[:1], found[:1]
    keys = [every[one.token_ids, one.finished] for one in found]
    assert {num for num, _ in keys} == {highest}
    assert [one.score for one in found] == pytest.approx([score for _, score in keys], rel=1e-5)
    assert [score for _, score in keys] == pytest.approx(expected[:4])


rules = st.fixed_dictionaries(
    {
        "beam_size": st.integers(1, 5),
        "max_length": st.integers(1, 12),
        "min_length": st.integers(1, 6),
        "length_penalty": st.sampled_from([0.0, 1.0]),
        "patience": st.sampled_from([0.5, 1.0, 2.0]),
        "no_repeat_ngram_size": st.sampled_from([0, 0, 2]),
    }
)
asked = st.lists(
    st.tuples(
        required(8, most=6, longest=4),
        st.fixed_dictionaries(
            {
                "prefix": st.lists(st.integers(2, 8), max_size=3).map(tuple),
                "banned": st.sampled_from([(), ((2,),), ((3, 4), (5,))]),
            }
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=20)
@given(seeds, rules, asked)
def test_a_finished_translation_has_every_phrase(seed, rules, asked):
    tables = random_tables(seed, sentences=len(asked), vocab_size=9)
    config = BeamConfig(**rules)
    for table, (phrases, more), (best,) in zip(
        tables, asked, search(tables, config, asked), strict=True
    ):
        ids = best.token_ids
        most = max(rules["max_length"], len(more["prefix"]) + sum(map(len, phrases)) + 1)
        assert ids[: len(more["prefix"])] == more["prefix"]
        assert len(ids) + best.finished <= most
        if best.finished:
            assert num_met(ids, phrases) == len(phrases)
        if not more["banned"] and not rules["no_repeat_ngram_size"]:
            assert num_met(ids, phrases) == len(phrases)
        assert best.log_prob == pytest.approx(log_prob(table, ids, best.finished), rel=1e-4)


@settings(max_examples=20)
@given(seeds, rules, asked)
def test_what_is_banned_stays_banned_where_phrases_are_required(seed, rules, asked):
    tables = random_tables(seed, sentences=len(asked), vocab_size=9)
    for (_, more), (best,) in zip(asked, search(tables, BeamConfig(**rules), asked), strict=True):
        free = best.token_ids[len(more["prefix"]) :]
        assert all(not occurrences(free, phrase) for phrase in more["banned"])
        size = rules["no_repeat_ngram_size"]
        if size and not more["prefix"]:
            assert not repeats(best.token_ids, size)


@settings(max_examples=8)
@given(seeds, rules, asked, st.integers(1, 4))
def test_the_rest_of_the_batch_changes_nothing(seed, rules, asked, num_slots):
    tables = random_tables(seed, sentences=len(asked), vocab_size=9)
    config = BeamConfig(**rules)
    together = search(tables, config, asked)
    assert search(tables, config, asked, num_slots=num_slots) == together
    alone = [search(tables[n : n + 1], config, asked[n : n + 1])[0] for n in range(len(asked))]
    assert [best.token_ids for (best,) in alone] == [best.token_ids for (best,) in together]


@settings(max_examples=20)
@given(seeds, rules, asked)
def test_without_phrases_it_is_beam_search(seed, rules, asked):
    tables = ascending_tables(seed, sentences=len(asked) + 1, vocab_size=9)
    config = BeamConfig(**rules)
    plain = [((), more) for _, more in asked]
    # The last one has phrases.
    found = search(tables, config, [*plain, (((2, 3), (4,)), {})])[:-1]
    requests = [
        Request((number, 5, 5, END), number=number, **more)
        for number, (_, more) in enumerate(plain)
    ]
    assert found == search_requests(tables, BeamSearch(config, SPECIAL_TOKENS, CPU), requests)


def test_a_phrase_that_cannot_come_leaves_the_translation_unfinished():
    tables = random_tables(3, sentences=1, vocab_size=6)
    asked = [(((2,), (3, 4), (3, 4)), {})]
    config = BeamConfig(beam_size=4, max_length=9, no_repeat_ngram_size=1)
    ((best,),) = search(tables, config, asked)
    assert not best.finished
    # What ends for want of tokens has met as much as can be met.
    assert num_met(best.token_ids, asked[0][0]) == 2
    assert best.log_prob == pytest.approx(log_prob(tables[0], best.token_ids, finished=False))


def test_a_phrase_waits_for_its_position():
    """The phrase costs little behind 5 and much elsewhere; the beam finds it there."""
    tables = random_tables(0, sentences=1, vocab_size=8).mul(0)
    table = tables[0]
    for last, token in itertools.pairwise([START, 2, 3, 4, 5, 6, END]):
        table[last, token] = 6.0
    table[:, 7] = -6.0
    table[5, 7] = 5.0
    table[7, 6] = 6.0
    ((best,),) = search(tables, BeamConfig(beam_size=4, max_length=20), [(((7,),), {})])
    assert best.token_ids == (2, 3, 4, 5, 7, 6)
    assert best.finished


def test_a_phrase_without_a_position_does_not_make_the_translation_long():
    tables = random_tables(4, sentences=1, vocab_size=30)
    table = tables[0]
    table[:, 7] = -9.0
    for last, token in itertools.pairwise([START, 2, 3, 4, 5, 6, END]):
        table[last, token] = 9.0
    for size in (2, 5):
        config = BeamConfig(beam_size=size, max_length=200)
        ((best,),) = search(tables, config, [(((7,), (7, 8)), {})])
        assert best.finished
        assert len(best.token_ids) < 20


def model_log_prob(engine, source, row):
    """The log probability of a row of ids, from one run of the decoder over all of it."""
    source = torch.tensor([source])
    memory = engine.models[0].encode(source, torch.ones_like(source, dtype=torch.bool))
    states = engine.models[0].decoder(torch.tensor([[MODEL_START, *row[:-1]]]), memory)
    logits = engine.models[0].output(states)[0]
    logits[:, list(SUPPRESSED)] = -torch.inf
    logits[0, MODEL_END] = -torch.inf
    return float(logits.log_softmax(-1)[range(len(row)), row].sum())


def test_a_model_with_a_cache_writes_the_phrases_and_says_what_they_cost():
    engine, config = native_engine(), BeamConfig(beam_size=3, max_length=12)
    phrases = [((7,), (9, 10)), (), ((8, 8, 8),), ((11, 12), (11, 13), (30,))]
    inputs = [
        replace(one, required=phrases[number % 4]) for number, one in enumerate(sentences(20))
    ]
    found = engine.translate(inputs, config, nbest=2)
    plain = engine.translate(sentences(20), config, nbest=2)
    for one, hypotheses, without in zip(inputs, found, plain, strict=True):
        if not (one.source and one.required):
            assert [best.token_ids for best in hypotheses] == [best.token_ids for best in without]
            continue
        for best in hypotheses:
            assert num_met(best.token_ids, one.required) == len(one.required)
            row = [*best.token_ids, *([MODEL_END] if best.finished else [])]
            with torch.inference_mode():
                expected = model_log_prob(engine, one.source, row)
            assert best.log_prob == pytest.approx(expected)
    ids = [[one.token_ids for one in hypotheses] for hypotheses in found]
    shared = WorkersEngine(engine, 2).translate(inputs, config, nbest=2)
    engine.max_slots = 7
    few = engine.translate(inputs, config, nbest=2)
    assert [[one.token_ids for one in hypotheses] for hypotheses in few] == ids
    assert [[one.token_ids for one in hypotheses] for hypotheses in shared] == ids


@given(seeds)
def test_all_that_is_told_has_equally_many_phrases(seed):
    tables = random_tables(seed, sentences=1, vocab_size=6)
    asked = [(((2,), (3, 4), (3, 4)), {})]
    config = BeamConfig(beam_size=4, max_length=9, no_repeat_ngram_size=1, coverage_penalty=0.1)
    (found,) = search(tables, config, asked, nbest=3)
    assert len({num_met(one.token_ids, asked[0][0]) for one in found}) == 1


CONSTRAINTS = ConstraintState.initial([(2, 3), (4,)])
# Banks 0 to 3.
ROWS = [(), (2,), (2, 3), (2, 3, 4), (4,)]
candidates = st.lists(
    st.builds(
        lambda total, row: Candidate(total, total, 0, 9, CONSTRAINTS.reached(row)),
        st.integers(-20, 0).map(float),
        st.sampled_from(ROWS),
    ),
    max_size=25,
).map(lambda found: sorted(found, key=lambda one: -one.total))


def banks(found):
    return [one.state.num_tokens for one in found]


@given(candidates, st.integers(1, 12))
def test_banks_have_equal_shares_and_leave_to_others_what_they_cannot_use(found, size):
    taken = allocate_banks(found)[:size]
    assert len(taken) == min(size, len(found))
    for one, other in itertools.permutations(set(banks(found)), 2):
        has_more = banks(found).count(one) > banks(taken).count(one)
        if has_more:
            assert banks(taken).count(other) <= banks(taken).count(one) + 1


@given(candidates, st.integers(1, 12))
def test_the_best_of_a_bank_are_taken_and_the_furthest_bank_is_never_empty(found, size):
    taken = allocate_banks(found)[:size]
    for bank in set(banks(found)):
        own = [one.total for one in taken if one.state.num_tokens == bank]
        everything = [one.total for one in found if one.state.num_tokens == bank]
        assert own == everything[: len(own)]
    if found:
        assert max(banks(found)) in banks(taken)


@given(candidates)
def test_at_the_limit_those_with_most_phrases_come_first(found):
    order = sort_by_met(found)
    keys = [(one.state.num_met, one.total) for one in order]
    assert keys == sorted(keys, reverse=True)
    assert len(order) == len(found)


def constrained_beam(*written, enough=9):
    """Sequences that must write 2, after some tokens."""
    config = BeamConfig(beam_size=len(written), patience=enough / len(written))
    assert config.enough == enough
    rows = ConstrainedBeam(config, 1, END, [(2,)])
    rows.append([0] * len(written), written)
    return rows


def taken(rows, *offered, is_last=False):
    """What is taken of what each row can go on with; scores by token."""
    tokens, scores = [list(one) for one in offered], [list(one.values()) for one in offered]
    chosen = rows.allocate(rows.candidates(tokens, scores, scores), is_last=is_last)
    return [(one.beam_index, one.token) for one in chosen]


def test_a_row_ends_only_with_all_phrases():
    offered = {END: -1.0, 3: -2.0}, {END: -0.5, 3: -3.0, 2: -9.0}
    assert taken(constrained_beam(2, 3), *offered) == [(0, END), (1, 3), (0, 3), (1, 2)]


def test_a_token_that_comes_twice_counts_once():
    rows = constrained_beam(3)
    found = rows.candidates([[4, 2, 2]], [[-1.0, -2.0, -2.0]], [[-1.0, -2.0, -2.0]])
    assert [one.token for one in found] == [4, 2]


def test_rows_that_can_only_end_do_so_where_none_can_go_on():
    offered = {END: -1.0, 3: float("-inf")}
    assert taken(constrained_beam(4), offered) == [(0, END)]
    assert taken(constrained_beam(4, 4), offered, {3: -7.0}) == [(1, 3)]


def test_whole_rows_that_end_make_room_for_whole_rows():
    offered = {END: -5.0, 3: -6.0, 4: -7.0}, {3: -1.0, 4: -2.0}
    assert taken(constrained_beam(2, 3), *offered) == [(1, 3), (0, END), (0, 3), (0, 4), (1, 4)]


def test_at_the_limit_whole_rows_are_taken():
    offered = {END: -5.0, 3: -6.0}, {3: -1.0, 4: -2.0}
    assert taken(constrained_beam(2, 3), *offered, is_last=True)[:2] == [(0, END), (0, 3)]


def test_rows_wait_until_enough_would_have_ended():
    rows = constrained_beam(3, 3, enough=2)
    waiting, ending = {3: -1.0, 2: -8.0}, {END: -0.5, 3: -1.0, 2: -9.0}
    assert (0, 3) in taken(rows, waiting, waiting)
    assert (0, 3) in taken(rows, ending, waiting)
    # The second end that a plain search would have stored.
    assert taken(rows, waiting, ending) == [(0, 2), (1, 2)]
    assert not rows.is_over
    rows.append([0, 1], [2, 2])
    assert taken(rows, ending, ending)[:2] == [(0, END), (1, END)]
    assert rows.is_over


# Few tokens, so that phrases begin, overlap and repeat each other.
phrases = st.lists(st.lists(st.integers(2, 4), min_size=1, max_size=4).map(tuple), max_size=5)
token_rows = st.lists(st.integers(1, 5), max_size=14).map(tuple)


def met(row, required):
    """How often each phrase is met, and what is begun, read off the whole row."""
    counts = {one: min(required.count(one), occurrences(row, one)) for one in set(required)}
    missing = [one for one in set(required) if counts[one] < required.count(one)]
    begun = [
        size
        for size in range(len(row) + 1)
        for one in missing
        if size < len(one) and row[len(row) - size :] == one[:size]
    ]
    return counts, missing, max(begun, default=0)


@given(phrases, token_rows)
def test_progress_is_what_the_whole_row_says(required, row):
    state = ConstraintState.initial(required).reached(row)
    counts, missing, begun = met(row, required)
    assert state.num_met == sum(counts.values())
    assert state.is_complete == (not missing)
    assert state.num_tokens == begun + sum(len(one) * count for one, count in counts.items())
    tail = row[len(row) - begun :]
    assert state.next_tokens == sorted(
        {one[begun] for one in missing if begun < len(one) and one[:begun] == tail}
    )


@given(phrases, token_rows)
def test_a_wanted_token_brings_a_row_forward(required, row):
    state = ConstraintState.initial(required).reached(row)
    assert bool(state.next_tokens) == (not state.is_complete)
    for token in state.next_tokens:
        assert state.after(token).num_tokens > state.num_tokens


@given(phrases)
def test_wanted_tokens_lead_to_the_end_in_as_many_steps_as_there_are_tokens(required):
    state = ConstraintState.initial(required)
    for _ in range(sum(map(len, required))):
        if not state.is_complete:
            state = state.after(state.next_tokens[-1])
    assert state.is_complete
    assert state.num_tokens == sum(map(len, required))


def test_states_are_made_once():
    initial = ConstraintState.initial([(2, 3), (2, 4, 2)])
    assert initial.reached((2, 5, 2)) is initial.reached((9, 2))


@pytest.mark.parametrize(
    ("row", "num_met"), [((2, 2), 1), ((2, 2, 2), 2), ((2, 2, 5, 2, 2), 2), ((2, 2, 2, 2), 2)]
)
def test_a_phrase_listed_twice_is_wanted_at_two_positions(row, num_met):
    assert ConstraintState.initial([(2, 2), (2, 2)]).reached(row).num_met == num_met
