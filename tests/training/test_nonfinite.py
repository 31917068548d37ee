"""What becomes of batches that are not finite, and where their numbers come from."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_states import batch, train_state

from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.distributed import World
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.nonfinite import first_not_finite, rolled_back, verdict
from tformer_cli.training.step import skip_batch

BEGINNING = TrainingProgress.initial("abc", {})


def after(state: TrainingProgress, *batches: int) -> TrainingProgress:
    for number in batches:
        state = skip_batch(state, DataPosition(0, number), DataPosition(0, number + 1))
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
        state = skip_batch(state, DataPosition(0, place), DataPosition(0, place + 1))
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


@pytest.mark.parametrize(
    ("weight", "module"),
    [
        ("encoder.layers.0.self_attention.value.weight", "encoder.layers.0.self_attention.value"),
        ("decoder.layers.0.feedforward.down.bias", "decoder.layers.0.feedforward.down"),
        # The output is tied to the embeddings, where it shows first.
        ("output.weight", "encoder.embeddings.tokens"),
    ],
)
def test_the_first_module_whose_output_is_not_finite_is_named(weight, module):
    subject = train_state()
    subject.model.get_parameter(weight).data.fill_(math.inf)
    assert first_not_finite(subject, [batch()]) == module


def test_a_gradient_that_is_not_finite_is_named():
    subject = train_state()
    weight = "decoder.layers.0.cross_attention.key.weight"
    subject.model.get_parameter(weight).register_hook(lambda gradient: gradient * math.inf)
    assert first_not_finite(subject, [batch()]) == f"the gradient of {weight}"


@pytest.mark.parametrize("is_well", [True, False])
def test_processes_agree_on_what_the_first_that_fails_has_found(monkeypatch, is_well):
    subject, others, told = train_state(), [[], ["decoder.norm"], ["encoder.norm"]], []
    if not is_well:
        subject.model.get_parameter("output.weight").data.fill_(math.inf)

    def gather(world: World, lines: list[str]) -> list[list[str]]:
        told.extend(lines)
        return [lines, *others]

    monkeypatch.setattr(World, "gather", gather)
    own = [] if is_well else ["encoder.embeddings.tokens"]
    assert first_not_finite(subject, [batch()]) == [*own, "decoder.norm"][0]
    assert told == own


def test_a_diagnosis_leaves_no_trace():
    subject = train_state()
    assert first_not_finite(subject, [batch()]) == "the loss"
    assert all(parameter.grad is None for parameter in subject.model.parameters())
    assert not any(module._forward_hooks for module in subject.model.modules())
