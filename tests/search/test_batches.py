"""Batches within a token budget, and what is left of them where memory ends."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.errors import DeviceError
from tformer_cli.search.batches import halving_on_oom, length_batches, padded_batches

BUDGET = 200


@given(st.lists(st.integers(1, 2 * BUDGET), min_size=1, max_size=40))
def test_a_batch_is_as_large_as_it_may_be(lengths):
    sentences = [[7] * length for length in lengths]
    batch = next(padded_batches(iter(sentences), lambda one: (1, len(one)), BUDGET))
    assert batch == sentences[: len(batch)]
    assert len(batch) == 1 or len(batch) * max(map(len, batch)) <= BUDGET
    more = sentences[: len(batch) + 1]
    assert more == batch or len(more) * max(map(len, more)) > BUDGET


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=50))
def test_length_batches_hold_every_non_empty_sentence_once_within_the_budget(sentences):
    widths, counts = [width for width, _ in sentences], [count for _, count in sentences]
    batches = list(length_batches(widths, counts, BUDGET))
    held = sorted(number for batch in batches for number in batch)
    assert held == [number for number, (width, count) in enumerate(sentences) if width and count]
    for batch in batches:
        widest = max(widths[number] for number in batch)
        assert len(batch) == 1 or sum(counts[number] for number in batch) * widest <= BUDGET


@given(st.lists(st.integers(0, 40), max_size=50))
def test_the_longest_sentences_come_first(widths):
    order = [n for batch in length_batches(widths, [1] * len(widths), BUDGET) for n in batch]
    assert [widths[number] for number in order] == sorted(filter(None, widths), reverse=True)


def with_room_for(most):
    """Return a work that wants memory for more than `most` sentences in vain."""

    def work(batch):
        if len(batch) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return [-number for number in batch]

    return work


@given(st.integers(1, 12), st.lists(st.integers(1, 30), max_size=5))
def test_what_memory_has_no_room_for_is_halved_and_none_is_lost(most, sizes):
    numbers = iter(range(sum(sizes)))
    batches = [[next(numbers) for _ in range(size)] for size in sizes]
    found = list(halving_on_oom(with_room_for(most), batches, torch.device("cpu")))
    assert [number for batch, _ in found for number in batch] == list(range(sum(sizes)))
    assert all(len(batch) <= most for batch, _ in found)
    assert [result for _, result in found] == [[-number for number in batch] for batch, _ in found]


def test_memory_without_room_for_one_sentence_is_an_error():
    with pytest.raises(DeviceError) as raised:
        list(halving_on_oom(with_room_for(0), [[0, 1]], torch.device("cpu")))
    assert str(raised.value) == (
        "cpu: memory ran out on a single sentence and its translations; "
        "use shorter lines, or fewer translations of each"
    )


def test_other_errors_pass():
    def work(batch):
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        list(halving_on_oom(work, [[0]], torch.device("cpu")))
