"""Loss scales, and batches cut in halves."""

import pytest
import torch

from tformer_cli.corpus.batch import Batch, Masking, collate
from tformer_cli.corpus.store import Example
from tformer_cli.errors import TrainingError
from tformer_cli.training.retry import (
    GROWTH_INTERVAL,
    INITIAL_LOSS_SCALE,
    LossScale,
    in_halves,
    memory_shortage_reported,
)


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
    for name in ("source", "source_mask", "target_in", "target_out", "target_mask", "indices"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert one.num_target_tokens == two.num_target_tokens


def test_halves_are_the_batches_of_their_rows():
    halves = in_halves([collate(ROWS), collate(ROWS[:1]), collate(ROWS[3:])], where="step 3")
    expected = [ROWS[:3], ROWS[3:], ROWS[:1], ROWS[3:4], ROWS[4:]]
    for half, rows in zip(halves, expected, strict=True):
        assert_equal(half, collate(rows))


def test_halves_of_a_masked_batch_are_the_masked_batches_of_their_rows():
    texts = [[20 + length] * length for length in (9, 4, 2)]
    rows = [Example(place, text, text) for place, text in enumerate(texts)]
    masking = Masking(mask_prob=0.15, vocabulary_size=50, seed=1)
    halves = in_halves([masking.apply(collate(rows), epoch=0)], where="step 3")
    for half, part in zip(halves, (rows[:2], rows[2:]), strict=True):
        assert_equal(half, masking.apply(collate(part), epoch=0))


def test_a_single_row_cannot_be_halved():
    with pytest.raises(TrainingError) as caught:
        in_halves([collate(ROWS[1:2]), collate(ROWS[2:3])], where="step 3")
    assert str(caught.value) == (
        "step 3: memory ran out on a single pair of sentences; got 3 and 6 tokens; "
        "lower data.filters.max_length, or train a smaller model"
    )


def test_memory_that_runs_out_elsewhere_is_said_of_the_run():
    with pytest.raises(TrainingError) as caught, memory_shortage_reported("runs/x"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB.\nMore words.")
    assert str(caught.value) == (
        "runs/x: memory ran out; what was saved before is intact; "
        "got CUDA out of memory. Tried 2 GiB.; "
        "lower training.batch_tokens, or train a smaller model"
    )
    with pytest.raises(RuntimeError, match="shapes"), memory_shortage_reported("runs/x"):
        raise RuntimeError("shapes")
