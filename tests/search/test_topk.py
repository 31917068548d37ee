import torch
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.search.topk import GROUP, topk_continuations, topk_tokens

sizes = st.sampled_from([5, GROUP, 11 * GROUP, 23 * GROUP, 23 * GROUP + 7])


@given(sizes, st.integers(1, 10), st.integers(1, 70), st.integers(0, 1000))
def test_best_tokens_are_those_of_topk(vocab_size, count, num_beams, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_beams, vocab_size, generator=generator)
    values, tokens = topk_tokens(scores, count)
    expected = scores.topk(min(count, vocab_size), dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens, expected.indices)


@given(sizes, st.integers(1, 10), st.integers(1, 20), st.integers(1, 5), st.integers(0, 1000))
def test_the_best_of_several_rows_are_those_of_topk(vocab_size, count, num_slots, num_beams, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_slots, num_beams, vocab_size, generator=generator)
    norms, totals = torch.randn(2, num_slots, num_beams, generator=generator)
    totals[:, 1:2] = -torch.inf
    rows, tokens = topk_continuations(logits, norms, totals, count)
    together = (totals[:, :, None] + (logits - norms[:, :, None])).flatten(1)
    expected = together.topk(min(count, together.shape[1]), dim=-1)
    found = together.gather(1, rows * vocab_size + tokens)
    assert torch.equal(found, expected.values)


def test_the_last_tokens_of_a_vocabulary_are_seen_too():
    scores = torch.zeros(9, 23 * GROUP + 7)
    scores[:, -1] = 1.0
    scores[:, 0] = 2.0
    assert topk_tokens(scores, 2)[1].tolist() == [[0, 23 * GROUP + 6]] * 9
