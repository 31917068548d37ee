"""Attention against torch's own layer, and the fast kernel against the formula."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tformer_cli.model import masks
from tformer_cli.model.attention import (
    MOST_WEIGHTS,
    Attention,
    View,
    attend,
    attention_weights,
    kernel_attend,
    naive_attend,
    softmax,
)

B, H, S, T, DH = 2, 3, 5, 7, 11


def heads(length: int) -> torch.Tensor:
    return torch.randn(B, H, length, DH, dtype=torch.float64)


def views(length: int, keys: int) -> dict[str, View]:
    real = torch.arange(keys) < torch.tensor([[keys], [keys - 2]])
    bias = torch.randn(H, length, keys, dtype=torch.float64)
    everywhere = {
        "everywhere": View(),
        "padding": View(mask=masks.padding(real)),
        "bias": View(bias=bias),
        "padding and bias": View(mask=masks.padding(real), bias=bias),
    }
    if length != keys:
        return everywhere
    return everywhere | {
        "causal": View(causal=True),
        "causal and padding": View(mask=masks.padding(real), causal=True),
        "causal and bias": View(bias=bias, causal=True),
        "all": View(mask=masks.padding(real), bias=bias, causal=True),
    }


@pytest.mark.parametrize("keys", [S, T])
def test_kernel_and_formula_agree_in_every_view_with_their_gradients(keys):
    inputs = [heads(length).requires_grad_() for length in (T, keys, keys)]
    direction = heads(T)
    for name, view in views(T, keys).items():
        fast, naive = (way(*inputs, view, 0.0) for way in (kernel_attend, naive_attend))
        torch.testing.assert_close(fast, naive, msg=f"differs in view {name}")
        gradients = [torch.autograd.grad((out * direction).sum(), inputs) for out in (fast, naive)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, msg=f"gradients differ in view {name}")


@pytest.mark.parametrize(("batch", "way"), [(1, naive_attend), (2, kernel_attend)])
def test_a_large_attention_goes_by_the_kernel(batch, way):
    length = math.isqrt(MOST_WEIGHTS // 4)
    queries, keys, values = (torch.randn(batch, 4, length, 1) for _ in range(3))
    found = attend(queries, keys, values, View(causal=True))
    assert torch.equal(found, way(queries, keys, values, View(causal=True), 0.0))


@pytest.mark.parametrize("length", [1, 7, 15, 16, 17, 40])
def test_softmax_is_that_of_torch_with_its_gradient(length):
    logits = torch.randn(3, 2, length, dtype=torch.float64).requires_grad_()
    direction = torch.randn(3, 2, length, dtype=torch.float64)
    found, expected = softmax(logits), logits.softmax(-1)
    torch.testing.assert_close(found, expected)
    mine, theirs = (
        torch.autograd.grad((out * direction).sum(), logits)[0] for out in (found, expected)
    )
    torch.testing.assert_close(mine, theirs)


def test_attention_weights_are_distributions_over_what_may_be_seen():
    real = torch.arange(S) < torch.tensor([[5], [3]])
    weights = attention_weights(heads(S), heads(S), View(mask=masks.padding(real), causal=True))
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, S, dtype=torch.float64))
    assert (weights[~masks.combined(real).expand_as(weights)] == 0).all()


@given(st.integers(0, 1000), st.integers(0, T - 1))
def test_causal_attention_ignores_the_future(seed, place):
    torch.manual_seed(seed)
    queries, keys, values = heads(T), heads(T), heads(T)
    before = attend(queries, keys, values, View(causal=True))
    keys[:, :, place + 1 :] = torch.randn_like(keys[:, :, place + 1 :])
    values[:, :, place + 1 :] = torch.randn_like(values[:, :, place + 1 :])
    after = attend(queries, keys, values, View(causal=True))
    torch.testing.assert_close(before[:, :, : place + 1], after[:, :, : place + 1])


def test_dropout_keeps_the_expected_value():
    queries, keys = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 3, 4)
    values = torch.ones(1, 1, 3, 2)
    mean = torch.stack(
        [attend(queries, keys, values, View(), dropout=0.5) for _ in range(4000)]
    ).mean()
    # One attention output is 2 * sum of kept weights: mean 1, standard deviation at most 1.
    assert abs(mean - 1) < 0.08


def copy_of(reference: nn.MultiheadAttention, dim: int) -> Attention:
    ours = Attention(dim, H, dropout=0.0).double()
    with torch.no_grad():
        for name, weight, bias in zip(
            ("query", "key", "value"),
            reference.in_proj_weight.chunk(3),
            reference.in_proj_bias.chunk(3),
            strict=True,
        ):
            getattr(ours, name).weight.copy_(weight)
            getattr(ours, name).bias.copy_(bias)
        ours.output.weight.copy_(reference.out_proj.weight)
        ours.output.bias.copy_(reference.out_proj.bias)
    return ours


def test_attention_equals_torch_multihead_attention_with_gradients():
    dim = H * DH
    reference = nn.MultiheadAttention(dim, H, batch_first=True).double()
    nn.init.normal_(reference.in_proj_bias)
    ours = copy_of(reference, dim)
    real = torch.arange(S) < torch.tensor([[5], [3]])
    queries = torch.randn(B, T, dim, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(B, S, dim, dtype=torch.float64, requires_grad=True)
    expected, _ = reference(queries, memory, memory, key_padding_mask=~real)
    actual = ours(ours.queries(queries), ours.key_value(memory), View(mask=masks.padding(real)))
    torch.testing.assert_close(actual, expected)
    direction = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad((actual * direction).sum(), (queries, memory)),
        torch.autograd.grad((expected * direction).sum(), (queries, memory)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
