"""Attention against torch's own layer."""

import pytest
import torch
from model.parity import assert_same, called, randomized, renamed
from torch import nn

from tformer_cli.kernels.attention_mask import AttentionMask, padding_mask
from tformer_cli.model.blocks.attention import Attention

B, H, S, T, DH = 2, 6, 5, 7, 11


@pytest.mark.parametrize("bias", [True, False])
def test_attention_equals_torch_multihead_attention_with_gradients(bias):
    dim = H * DH
    theirs = randomized(nn.MultiheadAttention(dim, H, bias=bias, batch_first=True).double())
    weights = renamed(theirs, {"output": "out_proj"})
    for kind in ("weight", "bias") if bias else ("weight",):
        parts = getattr(theirs, f"in_proj_{kind}").chunk(3)
        weights |= {
            f"{name}.{kind}": part
            for name, part in zip(("query", "key", "value"), parts, strict=True)
        }
    ours = Attention(dim, H, H, DH, dropout=0.0, bias=bias).double()
    real = torch.arange(S) < torch.tensor([[5], [3]])
    states = torch.randn(B, T, dim, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(B, S, dim, dtype=torch.float64, requires_grad=True)
    queries = called(ours, weights, states, method="project_q")
    key_value = called(ours, weights, memory, method="project_kv")
    said = called(ours, weights, queries, key_value, AttentionMask(mask=padding_mask(real)))
    expected, _ = theirs(states, memory, memory, key_padding_mask=~real)
    assert_same(said, expected, [states, memory, *theirs.parameters()])
