"""Padding against batches written by hand; masks against the paper's shares."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.corpus.batch import Batch, collate
from tformer_cli.corpus.noise import Masking
from tformer_cli.corpus.store import Example
from tformer_cli.text.special_tokens import MASK_ID, NUM_SPECIAL, PAD_ID, UNK_ID
from tformer_cli.text.tokenizer import with_eos

ids = st.lists(st.integers(6, 50), max_size=9)


def test_collate_pads_and_shifts_as_written_by_hand():
    batch = collate([Example(7, [11, 12], [21]), Example(3, [13], [22, 23, 24])])
    assert batch.source.tolist() == [[11, 12, 3], [13, 3, 0]]
    assert batch.source_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.target_in.tolist() == [[2, 21, 0, 0], [2, 22, 23, 24]]
    assert batch.target_out.tolist() == [[21, 3, 0, 0], [22, 23, 24, 3]]
    assert batch.target_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.indices.tolist() == [7, 3]
    assert batch.num_target_tokens == 6


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=8))
def test_masks_agree_with_the_ids_and_nothing_is_lost(pairs):
    batch = collate([Example(i, source, target) for i, (source, target) in enumerate(pairs)])
    assert torch.equal(batch.source_mask, batch.source != 0)
    assert torch.equal(batch.target_mask, batch.target_out != 0)
    assert torch.equal(batch.target_mask, batch.target_in != 0)
    for row, (source, target) in enumerate(pairs):
        assert batch.source[row][batch.source_mask[row]].tolist() == (with_eos(source) or [3])
        assert batch.target_in[row][batch.target_mask[row]].tolist() == [2, *target]
        assert batch.target_out[row][batch.target_mask[row]].tolist() == [*target, 3]
    assert batch.num_target_tokens == sum(len(target) + 1 for _, target in pairs)
    assert batch.targets.tolist() == [id for _, target in pairs for id in (*target, 3)]


VOCABULARY = NUM_SPECIAL + 1000
MASKING = Masking(mask_prob=0.15, vocabulary_size=VOCABULARY, seed=5)


def examples(lengths: list[int], first: int = 0) -> list[Example]:
    random = np.random.default_rng(first)
    rows = [random.integers(NUM_SPECIAL, VOCABULARY, length) for length in lengths]
    return [Example(first + index, row, row) for index, row in enumerate(rows)]


def batch(lengths: list[int], first: int = 0) -> Batch:
    return collate(examples(lengths, first))


def equal(one: Batch, two: Batch) -> bool:
    return torch.equal(one.source, two.source) and torch.equal(one.target_mask, two.target_mask)


def test_shares_are_those_of_the_paper():
    """50,000 tokens: 7,500 are chosen; a deviation of four sigma would be chance once in 15,000."""
    plain = batch([7, 13, 20, 60] * 500)
    masked = MASKING.apply(plain, epoch=2)
    chosen = masked.target_mask
    num_tokens, num_chosen = 50_000, int(chosen.sum())
    # Of each sentence, the share is rounded: far less by chance than token by token.
    assert num_chosen / num_tokens == pytest.approx(0.15, abs=0.002)
    shown, truth = masked.source[chosen], plain.source[chosen]
    is_mask, stays = shown == MASK_ID, shown == truth
    # One of a thousand tokens is replaced by itself.
    for found, share in ((is_mask, 0.8), (stays, 0.1 + 0.1 / 1000)):
        sigma = (share * (1 - share) / num_chosen) ** 0.5
        assert float(found.float().mean()) == pytest.approx(share, abs=4 * sigma)
    others = shown[~is_mask & ~stays]
    assert int(others.min()) >= NUM_SPECIAL
    assert int(others.max()) < VOCABULARY
    # All ids are as likely: of 750 draws from 1,000, about 1 - exp(-0.75) of the ids come.
    assert len(others.unique()) == pytest.approx(528, abs=60)


def test_every_ordinary_id_replaces_others():
    few = range(NUM_SPECIAL, NUM_SPECIAL + 7)
    rows = [[few[index % 7] for index in range(40)] for _ in range(100)]
    plain = collate([Example(index, row, row) for index, row in enumerate(rows)])
    masked = Masking(mask_prob=0.5, vocabulary_size=few.stop, seed=5).apply(plain, epoch=0)
    replaced = masked.source[(masked.source != plain.source) & (masked.source != MASK_ID)]
    # Of some 170 draws from 7 ids, one is missing once in ten billion times.
    assert sorted(set(replaced.tolist())) == list(few)


def test_every_position_of_a_sentence_is_as_likely():
    chosen = MASKING.apply(batch([10] * 4000), epoch=0).target_mask.float().mean(dim=0)
    sigma = (0.15 * 0.85 / 4000) ** 0.5
    torch.testing.assert_close(chosen[:10], torch.full((10,), 0.15), rtol=0, atol=4 * sigma)


def test_special_tokens_and_padding_are_never_chosen():
    rows = [[UNK_ID, 20, UNK_ID], [UNK_ID] * 5, [30, 31, 32, 33, 34, 35, 36]]
    plain = collate([Example(index, row, row) for index, row in enumerate(rows)])
    for epoch in range(50):
        masked = MASKING.apply(plain, epoch)
        assert bool((plain.source[masked.target_mask] >= NUM_SPECIAL).all())
        assert masked.target_mask.sum(dim=1).tolist() in ([1, 0, 1], [1, 0, 2])
        assert masked.num_target_tokens == int(masked.target_mask.sum())
        assert torch.equal(masked.targets, masked.target_out[masked.target_mask])


def test_what_is_asked_for_is_what_stood_there():
    plain = batch([3, 9, 40])
    masked = MASKING.apply(plain, epoch=1)
    assert torch.equal(masked.target_out, plain.source)
    assert torch.equal(masked.source_mask, plain.source_mask)
    hidden = masked.source != plain.source
    assert bool(hidden.any())
    assert not bool((hidden & ~masked.target_mask).any())
    assert int(masked.source[0, 4]) == PAD_ID


def test_masks_are_a_function_of_seed_epoch_and_sentence():
    plain = batch([20] * 8)
    masked = MASKING.apply(plain, epoch=3)
    assert equal(masked, MASKING.apply(plain, epoch=3))
    assert not equal(masked, MASKING.apply(plain, epoch=4))
    assert not equal(masked, dataclasses.replace(MASKING, seed=6).apply(plain, epoch=3))
    same = [Example(index, [50] * 20, [50] * 20) for index in range(8)]
    chosen = MASKING.apply(collate(same), epoch=3).target_mask
    assert len({tuple(row) for row in chosen.tolist()}) > 1


def test_masks_do_not_depend_on_who_shares_a_batch():
    """However a batch is cut, and however wide its pieces are padded."""
    rows = examples([4, 11, 30, 7, 18], first=9)
    whole = MASKING.apply(collate(rows), epoch=1)
    for row in range(5):
        alone = MASKING.apply(collate(rows[row : row + 1]), epoch=1)
        width = alone.source.shape[1]
        assert torch.equal(alone.source[0], whole.source[row, :width])
        assert torch.equal(alone.target_mask[0], whole.target_mask[row, :width])
