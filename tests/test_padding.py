from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.padding import PAD_ID, pad_rows
from tformer_cli.text import special_tokens

rows_of_ids = st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=5)
an_id = st.none() | st.integers(1, 99)


def test_padding_is_the_id_that_vocabularies_keep_for_it():
    assert PAD_ID == special_tokens.PAD_ID


@given(rows_of_ids, an_id, an_id)
def test_rows_come_back_by_their_mask(rows, first, last):
    ids, mask = pad_rows(rows, first=first, last=last)
    ends = [[] if one is None else [one] for one in (first, last)]
    expected = [[*ends[0], *row, *ends[1]] for row in rows]
    assert [line[real].tolist() for line, real in zip(ids, mask, strict=True)] == expected
    assert (ids[~mask] == PAD_ID).all()
    assert ids.shape[1] == max(map(len, expected))
    # Real ones stand before padding.
    assert (mask.int().diff(dim=1) <= 0).all()
