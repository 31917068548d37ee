from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.decoding.batches import length_batches

BUDGET = 200


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
