import torch
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.corpus.batch import Example, collate

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
        assert batch.source[row][batch.source_mask[row]].tolist() == [*source, 3]
        assert batch.target_in[row][batch.target_mask[row]].tolist() == [2, *target]
        assert batch.target_out[row][batch.target_mask[row]].tolist() == [*target, 3]
    assert batch.num_target_tokens == sum(len(target) + 1 for _, target in pairs)
