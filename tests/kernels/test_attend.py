"""Attention by the fast kernel against the formula."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model.parity import assert_same

from tformer_cli.kernels import attention
from tformer_cli.kernels.attention import (
    MAX_NAIVE_WEIGHTS,
    MAX_TINY_WEIGHTS,
    attend,
    attention_weights,
    kernel_attend,
    naive_attend,
)
from tformer_cli.kernels.attention_mask import AttentionMask, causal_mask, padding_mask

B, H, S, T, DH = 2, 6, 5, 7, 11


def heads(length: int, num_heads: int = H, width: int = DH) -> torch.Tensor:
    return torch.randn(B, num_heads, length, width, dtype=torch.float64)


def views(length: int, keys: int) -> dict[str, AttentionMask]:
    real = torch.arange(keys) < torch.tensor([[keys], [keys - 2]])
    bias = torch.randn(H, length, keys, dtype=torch.float64)
    everywhere = {
        "everywhere": AttentionMask(),
        "padding": AttentionMask(mask=padding_mask(real)),
        "bias": AttentionMask(bias=bias),
        "padding and bias": AttentionMask(mask=padding_mask(real), bias=bias),
    }
    if length != keys:
        return everywhere
    return everywhere | {
        "causal": AttentionMask(is_causal=True),
        "causal and padding": AttentionMask(mask=padding_mask(real), is_causal=True),
        "causal and bias": AttentionMask(bias=bias, is_causal=True),
        "all": AttentionMask(mask=padding_mask(real), bias=bias, is_causal=True),
    }


@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
@pytest.mark.parametrize("value_width", [DH, 5])
@pytest.mark.parametrize("keys", [S, T])
def test_kernel_and_formula_agree_in_every_view_with_their_gradients(
    keys, value_width, num_kv_heads
):
    inputs = [heads(T, H), heads(keys, num_kv_heads), heads(keys, num_kv_heads, value_width)]
    for part in inputs:
        part.requires_grad_()
    for view in views(T, keys).values():
        fast, naive = (way(*inputs, view, 0.0) for way in (kernel_attend, naive_attend))
        assert_same(fast, naive, inputs)


@pytest.mark.parametrize("way", [kernel_attend, naive_attend])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_a_shared_head_serves_those_in_a_row(num_kv_heads, way):
    queries, keys, values = heads(T), heads(S, num_kv_heads), heads(S, num_kv_heads)
    found = way(queries, keys, values, AttentionMask(), 0.0)
    for head in range(H):
        own = slice(head * num_kv_heads // H, head * num_kv_heads // H + 1)
        logits = queries[:, head] @ keys[:, own].squeeze(1).mT / math.sqrt(DH)
        torch.testing.assert_close(found[:, head], logits.softmax(-1) @ values[:, own].squeeze(1))


def in_format(view: AttentionMask, precision: torch.dtype) -> AttentionMask:
    """Return a view whose bias, if it has one, is in another number format."""
    return view if view.bias is None else view._replace(bias=view.bias.to(precision))


@pytest.mark.parametrize("name", ["bias", "padding and bias", "causal and bias", "all"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_bias_in_fewer_digits_gives_nearly_the_same(name, precision):
    inputs = [heads(T).float() for _ in range(3)]
    view = views(T, T)[name]
    exact = naive_attend(*inputs, in_format(view, torch.float32), 0.0)
    rounded = in_format(view, precision)
    near = 1e-5 if precision == torch.float32 else 0.02
    for way in (kernel_attend, naive_attend):
        found = way(*inputs, rounded, 0.0)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, exact, rtol=0, atol=near)


@pytest.mark.parametrize("name", views(T, T))
def test_queries_in_fewer_digits_give_nearly_the_same(name):
    inputs = [heads(T).float() for _ in range(3)]
    view = in_format(views(T, T)[name], torch.float32)
    exact = naive_attend(*inputs, view, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        for way in (kernel_attend, naive_attend):
            found = way(*(part.bfloat16() for part in inputs), view, 0.0)
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.float(), exact, rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("batch", "way", "other"),
    [(1, naive_attend, kernel_attend), (2, kernel_attend, naive_attend)],
)
def test_a_large_attention_goes_by_the_kernel(batch, way, other):
    length = math.isqrt(MAX_NAIVE_WEIGHTS // 4)
    queries, keys, values = (torch.randn(batch, 4, length, 1) for _ in range(3))
    found = attend(queries, keys, values, AttentionMask(is_causal=True))
    assert torch.equal(found, way(queries, keys, values, AttentionMask(is_causal=True), 0.0))
    torch.testing.assert_close(
        found, other(queries, keys, values, AttentionMask(is_causal=True), 0.0), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("length", "way"),
    [(MAX_TINY_WEIGHTS // 4, kernel_attend), (MAX_TINY_WEIGHTS // 4 + 1, naive_attend)],
)
def test_a_tiny_attention_goes_by_the_kernel(length, way, monkeypatch):
    used = []
    for one in (kernel_attend, naive_attend):
        monkeypatch.setattr(attention, one.__name__, lambda *_, one=one: used.append(one))
    queries = torch.randn(1, 4, 1, 8)
    keys, values = (torch.randn(1, 2, length, 8) for _ in range(2))
    attend(queries, keys, values, AttentionMask())
    assert used == [way]
    narrow, across = values[..., :3], torch.randn(1, 2, 8, length).transpose(2, 3)
    attend(queries, keys, narrow, AttentionMask())
    attend(queries, across, values, AttentionMask())
    attend(queries, keys, values, AttentionMask(), 0.1)
    assert used[1:] == [naive_attend] * 3


def test_attention_weights_are_distributions_over_what_may_be_seen():
    real = torch.arange(S) < torch.tensor([[5], [3]])
    weights = attention_weights(
        heads(S), heads(S), AttentionMask(mask=padding_mask(real), is_causal=True)
    )
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, S, dtype=torch.float64))
    assert (
        weights[~(padding_mask(real) & causal_mask(real.shape[1])).expand_as(weights)] == 0
    ).all()


@given(st.integers(0, 1000), st.integers(0, T - 1))
def test_causal_attention_ignores_the_future(seed, position):
    torch.manual_seed(seed)
    queries, keys, values = heads(T), heads(T), heads(T)
    before = attend(queries, keys, values, AttentionMask(is_causal=True))
    keys[:, :, position + 1 :] = torch.randn_like(keys[:, :, position + 1 :])
    values[:, :, position + 1 :] = torch.randn_like(values[:, :, position + 1 :])
    after = attend(queries, keys, values, AttentionMask(is_causal=True))
    torch.testing.assert_close(before[:, :, : position + 1], after[:, :, : position + 1])


def test_dropout_keeps_the_expected_value():
    queries, keys = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 3, 4)
    values = torch.ones(1, 1, 3, 2)
    mean = torch.stack(
        [attend(queries, keys, values, AttentionMask(), dropout=0.5) for _ in range(4000)]
    ).mean()
    # One attention output is 2 * sum of kept weights: mean 1, standard deviation at most 1.
    assert abs(mean - 1) < 0.08
