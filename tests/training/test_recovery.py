"""Recovery: loss scales, batches in halves, and batches that are not finite."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_states import batch, train_state

from tformer_cli.corpus.batch import TENSORS, Batch, collate
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.noise import Masking
from tformer_cli.corpus.store import Example
from tformer_cli.distributed import World
from tformer_cli.errors import TrainingError
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.recovery import (
    GROWTH_INTERVAL,
    INITIAL_LOSS_SCALE,
    LossScale,
    first_not_finite,
    in_halves,
    memory_shortage_reported,
    next_action,
    rolled_back,
)
from tformer_cli.training.step import TrainState, accumulate_gradients, skip_batch
from tformer_cli.training.trainer import Trainer

BEGINNING = TrainingProgress(data_fingerprint="abc")


def after(state: TrainingProgress, *batches: int) -> TrainingProgress:
    for number in batches:
        state = skip_batch(state, DataPosition(0, number), DataPosition(0, number + 1))
    return state


def test_a_batch_that_fails_is_remembered_and_passed():
    state = after(BEGINNING, 4)
    assert state.skipped_batches == ((0, 4),)
    assert (state.data_position, state.step) == ((0, 5), 0)
    assert next_action(state) == "continue"


def test_three_batches_in_a_row_roll_back():
    assert [next_action(after(BEGINNING, *range(n))) for n in (1, 2, 3)] == [
        "continue",
        "continue",
        "roll back",
    ]
    stepped = replace(after(BEGINNING, 0, 1), num_consecutive_skips=0, step=1)
    assert next_action(after(stepped, 5, 6)) == "continue"


def test_a_rollback_keeps_what_was_learned_about_batches_and_halves_the_rate():
    saved = replace(BEGINNING, step=6, data_position=(0, 6), best_score=3.0)
    state = rolled_back(after(replace(saved, step=8, data_position=(0, 8)), 8, 9, 10), saved)
    assert state == replace(
        saved, skipped_batches=((0, 8), (0, 9), (0, 10)), learning_rate_factor=0.5, num_rollbacks=1
    )


def test_the_fourth_time_gives_up():
    state, actions, factors = BEGINNING, [], []
    for _ in range(4):
        state = after(state, 1, 2, 3)
        actions.append(next_action(state))
        state = rolled_back(state, BEGINNING)
        factors.append(state.learning_rate_factor)
    # Each time from one beginning, and half as fast again.
    assert factors == [1 / 2, 1 / 4, 1 / 8, 1 / 16]
    assert actions == ["roll back", "roll back", "roll back", "give up"]


@given(st.lists(st.booleans(), max_size=60))
def test_every_course_ends_and_keeps_its_books(outcomes):
    """Whatever fails, no batch is left out twice, and the rate is halved once a rollback."""
    state, saved, index = BEGINNING, BEGINNING, 0
    for fails in outcomes:
        if (0, index) in state.skipped_batches:
            index += 1
            continue
        if not fails:
            state = replace(
                state, step=state.step + 1, num_consecutive_skips=0, data_position=(0, index + 1)
            )
            index += 1
            continue
        state = skip_batch(state, DataPosition(0, index), DataPosition(0, index + 1))
        index += 1
        if next_action(state) == "give up":
            break
        if next_action(state) == "roll back":
            state = rolled_back(state, saved)
            index = state.data_position[1]
    assert len(set(state.skipped_batches)) == len(state.skipped_batches)
    assert state.learning_rate_factor == 0.5**state.num_rollbacks
    assert state.num_rollbacks <= 3
    assert len(state.skipped_batches) >= 3 * state.num_rollbacks


def first_of(subject: TrainState) -> str | None:
    return first_not_finite(
        subject.model, lambda: accumulate_gradients(subject, [batch()], num_tokens=6)
    )


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
    assert first_of(subject) == module


def test_a_gradient_that_is_not_finite_is_named():
    subject = train_state()
    weight = "decoder.layers.0.cross_attention.key.weight"
    subject.model.get_parameter(weight).register_hook(lambda gradient: gradient * math.inf)
    assert first_of(subject) == f"the gradient of {weight}"


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
    trainer = SimpleNamespace(state=subject)
    assert Trainer._first_not_finite(trainer, [batch()]) == [*own, "decoder.norm"][0]
    assert told == own


def test_a_diagnosis_leaves_no_hooks():
    subject = train_state()
    assert first_of(subject) is None
    assert not any(module._forward_hooks for module in subject.model.modules())


def test_only_float16_needs_one():
    for precision in (torch.float32, torch.bfloat16):
        scale = LossScale.initial(precision)
        assert scale.factor == 1.0
        assert not scale.can_be_lowered
        for _ in range(GROWTH_INTERVAL):
            scale = scale.stepped(precision)
        assert scale.factor == 1.0
    assert LossScale.initial(torch.float16).factor == INITIAL_LOSS_SCALE


def test_it_grows_after_many_steps_and_an_overflow_begins_the_count_again():
    scale = LossScale(8.0)
    for _ in range(GROWTH_INTERVAL - 1):
        scale = scale.stepped(torch.float16)
    assert scale == LossScale(8.0, GROWTH_INTERVAL - 1)
    assert scale.stepped(torch.float16) == LossScale(16.0, 0)
    assert scale.lowered() == LossScale(4.0, 0)


ROWS = [
    Example(0, [7, 8, 9], [9, 10, 11]),
    Example(1, [12], [13]),
    Example(2, [5, 6], [7, 8, 9, 10, 11]),
    Example(3, [14], [15]),
    Example(4, [16, 17], [18]),
]


def assert_equal(one: Batch, two: Batch) -> None:
    for name in (*TENSORS, "target_mask", "indices"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert one.num_target_tokens == two.num_target_tokens


def test_halves_are_the_batches_of_their_rows():
    halves = in_halves([collate(ROWS), collate(ROWS[:1]), collate(ROWS[3:])], where="step 3")
    expected = [ROWS[:3], ROWS[3:], ROWS[:1], ROWS[3:4], ROWS[4:]]
    for half, rows in zip(halves, expected, strict=True):
        assert_equal(half, collate(rows))


def test_halves_of_a_masked_batch_are_the_masked_batches_of_their_rows():
    texts = [[20 + length] * length for length in (9, 4, 2)]
    rows = [Example(index, text, text) for index, text in enumerate(texts)]
    masking = Masking(mask_prob=0.15, vocabulary_size=50, seed=1)
    halves = in_halves([masking.apply(collate(rows), epoch=0)], where="step 3")
    for half, part in zip(halves, (rows[:2], rows[2:]), strict=True):
        assert_equal(half, masking.apply(collate(part), epoch=0))


def test_a_single_row_cannot_be_halved():
    with pytest.raises(TrainingError) as caught:
        in_halves([collate(ROWS[1:2]), collate(ROWS[2:3])], where="step 3")
    assert str(caught.value) == (
        "step 3: memory ran out on a single pair of sentences (3 and 6 tokens); "
        "lower data.filters.max_length, or train a smaller model"
    )


def test_memory_that_runs_out_elsewhere_is_said_of_the_run():
    with pytest.raises(TrainingError) as caught, memory_shortage_reported("runs/x"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB.\nMore words.")
    assert str(caught.value) == (
        "runs/x: memory ran out "
        "(CUDA out of memory. Tried 2 GiB.); "
        "lower training.batch_tokens, or train a smaller model; what was saved before is intact"
    )
    with pytest.raises(RuntimeError, match="shapes"), memory_shortage_reported("runs/x"):
        raise RuntimeError("shapes")
