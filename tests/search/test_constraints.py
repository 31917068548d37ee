"""How far rows have come with phrases, against counting in the whole row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.search.constraints import Constraints

# Few tokens, so that phrases begin, overlap and repeat each other.
phrases = st.lists(st.lists(st.integers(2, 4), min_size=1, max_size=4).map(tuple), max_size=5)
rows = st.lists(st.integers(1, 5), max_size=14).map(tuple)


def occurrences(row, phrase):
    return sum(row[position : position + len(phrase)] == phrase for position in range(len(row)))


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


@given(phrases, rows)
def test_progress_is_what_the_whole_row_says(required, row):
    state = Constraints(required).reached(row)
    counts, missing, begun = met(row, required)
    assert state.num_met == sum(counts.values())
    assert state.is_complete == (not missing)
    assert state.num_tokens == begun + sum(len(one) * count for one, count in counts.items())
    tail = row[len(row) - begun :]
    assert state.next_tokens == sorted(
        {one[begun] for one in missing if begun < len(one) and one[:begun] == tail}
    )


@given(phrases, rows)
def test_a_wanted_token_brings_a_row_forward(required, row):
    state = Constraints(required).reached(row)
    assert bool(state.next_tokens) == (not state.is_complete)
    for token in state.next_tokens:
        assert state.after(token).num_tokens > state.num_tokens


@given(phrases)
def test_wanted_tokens_lead_to_the_end_in_as_many_steps_as_there_are_tokens(required):
    state = Constraints(required).start
    for _ in range(sum(map(len, required))):
        if not state.is_complete:
            state = state.after(state.next_tokens[-1])
    assert state.is_complete
    assert state.num_tokens == sum(map(len, required))


def test_states_are_made_once():
    constraints = Constraints([(2, 3), (2, 4, 2)])
    assert constraints.reached((2, 5, 2)) is constraints.reached((9, 2))


@pytest.mark.parametrize(
    ("row", "num_met"), [((2, 2), 1), ((2, 2, 2), 2), ((2, 2, 5, 2, 2), 2), ((2, 2, 2, 2), 2)]
)
def test_a_phrase_listed_twice_is_wanted_at_two_positions(row, num_met):
    assert Constraints([(2, 2), (2, 2)]).reached(row).num_met == num_met
