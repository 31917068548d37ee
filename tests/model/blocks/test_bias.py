"""Biases by distance: what each formula says, written out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.kernels.attention import attention_weights
from tformer_cli.kernels.attention_mask import AttentionMask
from tformer_cli.model.blocks.bias import Alibi, RelativeBias, SlidingWindow, SumOfBiases, slopes

H, T, L, DH = 3, 5, 9, 7


def relative(*, is_causal: bool) -> RelativeBias:
    bias = RelativeBias(8, 20, H, is_causal=is_causal)
    torch.nn.init.normal_(bias.table.weight)
    return bias


def biases() -> dict[str, torch.nn.Module]:
    return {
        "alibi": Alibi(H),
        "relative": relative(is_causal=False),
        "relative and causal": relative(is_causal=True),
        "window": SlidingWindow(3),
        "several": SumOfBiases([Alibi(H), SlidingWindow(4)]),
    }


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_are_powers_of_two(num_heads, exponents):
    assert slopes(num_heads).tolist() == pytest.approx([2.0**-power for power in exponents])


def test_alibi_falls_with_distance_on_both_sides():
    found = Alibi(2)(torch.arange(3), torch.arange(3))
    near, far = 2.0**-4, 2.0**-8
    distances = [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    expected = [[[-rate * step for step in row] for row in distances] for rate in (near, far)]
    assert found.tolist() == expected


@pytest.mark.parametrize("name", biases())
@given(st.integers(0, 400), st.integers(0, 1000))
def test_attention_knows_distances_only(name, shift, seed):
    torch.manual_seed(seed)
    bias = biases()[name]
    queries, keys = torch.arange(L - T, L), torch.arange(L)
    heads = torch.randn(1, H, T, DH), torch.randn(1, H, L, DH)
    here, there = (
        attention_weights(*heads, AttentionMask(bias=bias(queries + far, keys + far)))
        for far in (0, shift)
    )
    assert torch.equal(here, there)


@pytest.mark.parametrize("name", biases())
def test_rows_may_have_positions_of_their_own(name):
    bias = biases()[name]
    queries = torch.tensor([[0, 3, 7], [2, 2, 40]])
    keys = torch.tensor([[0, 1, 2, 3], [30, 2, 0, 5]])
    together = bias(queries, keys)
    for row in range(2):
        torch.testing.assert_close(together[row], bias(queries[row], keys[row]))


@given(st.integers(1, 12), st.integers(1, 14), st.integers(1, 14), st.integers(0, 9))
def test_a_window_hides_exactly_what_is_beyond(width, num_queries, num_keys, first):
    queries, keys = torch.arange(first, first + num_queries), torch.arange(num_keys)
    hidden = SlidingWindow(width)(queries, keys)[0] != 0
    for query in range(num_queries):
        for key in range(num_keys):
            assert hidden[query, key] == (abs(first + query - key) >= width)


def test_what_a_window_hides_has_no_weight_at_all():
    heads = 30 * torch.randn(1, H, L, DH), 30 * torch.randn(1, H, L, DH)
    indices = torch.arange(L)
    weights = attention_weights(*heads, AttentionMask(bias=SlidingWindow(3)(indices, indices)))
    is_far = (indices[:, None] - indices).abs() >= 3
    assert (weights[:, :, is_far] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, H, L))


def test_several_biases_are_added():
    queries, keys = torch.arange(T), torch.arange(L)
    parts = [Alibi(H), relative(is_causal=False), SlidingWindow(3)]
    expected = sum(part(queries, keys) for part in parts)
    torch.testing.assert_close(SumOfBiases(parts)(queries, keys), expected)


def class_of(distance: int, num_buckets: int, farthest: int, *, is_causal: bool) -> int:
    """Return the class of a key so far behind its query, by hand."""
    own = num_buckets if is_causal else num_buckets // 2
    first = own if distance > 0 and not is_causal else 0
    length = max(-distance, 0) if is_causal else abs(distance)
    exact = own // 2
    if length < exact:
        return first + length
    share = math.log(length / exact) / math.log(farthest / exact)
    # What lies on a limit may be rounded to either side, but not by two.
    return first + min(exact + int(share * (own - exact) + 1e-6), own - 1)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "farthest"), [(4, 5), (8, 20), (32, 128), (10, 300)])
def test_classes_of_distances_follow_the_formula(num_buckets, farthest, is_causal):
    bias = RelativeBias(num_buckets, farthest, H, is_causal=is_causal)
    distances = range(-300, 301)
    found = bias.buckets(torch.tensor(distances)).tolist()
    expected = [class_of(far, num_buckets, farthest, is_causal=is_causal) for far in distances]
    assert found == expected
    assert set(found) <= set(range(num_buckets))
    assert bias.buckets(torch.tensor([-farthest])) == bias.buckets(torch.tensor([-9 * farthest]))


@pytest.mark.parametrize("is_causal", [True, False])
def test_relative_bias_is_looked_up_for_each_head(is_causal):
    bias = relative(is_causal=is_causal)
    queries, keys = torch.arange(T), torch.arange(L)
    found = bias(queries, keys)
    for query in range(T):
        for key in range(L):
            expected = bias.table.weight[bias.buckets(torch.tensor(key - query))]
            assert torch.equal(found[:, query, key], expected)
