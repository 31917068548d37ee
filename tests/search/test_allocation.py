"""Which candidates get a row of a constrained beam."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.search.constrained import Candidate, ConstrainedBeam, allocate_banks, sort_by_met
from tformer_cli.search.constraints import Constraints

END = 1
CONSTRAINTS = Constraints([(2, 3), (4,)])
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
