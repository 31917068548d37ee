import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.decoding.candidates import STRETCH, best_log_probs, best_tokens

sizes = st.sampled_from([5, STRETCH, 11 * STRETCH, 23 * STRETCH, 23 * STRETCH + 7])


@given(sizes, st.integers(1, 10), st.integers(1, 70), st.integers(0, 1000))
def test_best_tokens_are_those_of_topk(vocab_size, count, num_rows, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_rows, vocab_size, generator=generator)
    values, tokens = best_tokens(scores, count)
    expected = scores.topk(min(count, vocab_size), dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens, expected.indices)


def test_the_last_tokens_of_a_vocabulary_are_seen_too():
    scores = torch.zeros(9, 23 * STRETCH + 7)
    scores[:, -1] = 1.0
    scores[:, 0] = 2.0
    assert best_tokens(scores, 2)[1].tolist() == [[0, 23 * STRETCH + 6]] * 9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_log_probs_are_normalised_over_the_whole_vocabulary(dtype):
    logits = torch.randn(50, 2345).to(dtype)
    logits[:, 7] = -torch.inf
    values, tokens = best_log_probs(logits, 4)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = logits.to(wide) - logits.to(wide).logsumexp(-1, keepdim=True)
    torch.testing.assert_close(values, expected.gather(1, tokens))
    torch.testing.assert_close(values, expected.topk(4).values)
