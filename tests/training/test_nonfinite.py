from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.nonfinite import failed, rolled_back, verdict

BEGINNING = TrainingProgress.initial("abc", {})


def after(state: TrainingProgress, *batches: int) -> TrainingProgress:
    for batch in batches:
        state = failed(state, DataPosition(0, batch), DataPosition(0, batch + 1))
    return state


def test_a_batch_that_fails_is_remembered_and_passed():
    state = after(BEGINNING, 4)
    assert state.skipped_batches == ((0, 4),)
    assert (state.data_position, state.step) == ((0, 5), 0)
    assert verdict(state) == "go on"


def test_three_batches_in_a_row_roll_back():
    assert [verdict(after(BEGINNING, *range(n))) for n in (1, 2, 3)] == [
        "go on",
        "go on",
        "roll back",
    ]
    stepped = replace(after(BEGINNING, 0, 1), num_consecutive_skips=0, step=1)
    assert verdict(after(stepped, 5, 6)) == "go on"


def test_a_rollback_keeps_what_was_learnt_about_batches_and_halves_the_rate():
    saved = replace(BEGINNING, step=6, data_position=(0, 6), best_score=3.0)
    state = rolled_back(after(replace(saved, step=8, data_position=(0, 8)), 8, 9, 10), saved)
    assert state == replace(
        saved, skipped_batches=((0, 8), (0, 9), (0, 10)), learning_rate_factor=0.5, num_rollbacks=1
    )


def test_the_fourth_time_gives_up():
    state, verdicts, factors = BEGINNING, [], []
    for _ in range(4):
        state = after(state, 1, 2, 3)
        verdicts.append(verdict(state))
        state = rolled_back(state, BEGINNING)
        factors.append(state.learning_rate_factor)
    # Each time from one beginning, and half as fast again.
    assert factors == [1 / 2, 1 / 4, 1 / 8, 1 / 16]
    assert verdicts == ["roll back", "roll back", "roll back", "give up"]


@given(st.lists(st.booleans(), max_size=60))
def test_every_course_ends_and_keeps_its_books(outcomes):
    """Whatever fails, no batch is left out twice, and the rate is halved once a rollback."""
    state, saved, place = BEGINNING, BEGINNING, 0
    for fails in outcomes:
        if (0, place) in state.skipped_batches:
            place += 1
            continue
        if not fails:
            state = replace(
                state, step=state.step + 1, num_consecutive_skips=0, data_position=(0, place + 1)
            )
            place += 1
            continue
        state = failed(state, DataPosition(0, place), DataPosition(0, place + 1))
        place += 1
        if verdict(state) == "give up":
            break
        if verdict(state) == "roll back":
            state = rolled_back(state, saved)
            place = state.data_position[1]
    assert len(set(state.skipped_batches)) == len(state.skipped_batches)
    assert state.learning_rate_factor == 0.5**state.num_rollbacks
    assert state.num_rollbacks <= 3
    assert len(state.skipped_batches) >= 3 * state.num_rollbacks
