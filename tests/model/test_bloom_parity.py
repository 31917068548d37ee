"""ALiBi against transformers' Bloom and MPT."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from tformer_cli.kernels.attention_mask import causal_mask
from tformer_cli.model.blocks.bias import Alibi, slopes

LENGTH = 41


@pytest.mark.parametrize("num_heads", [*range(1, 21), 32, 48, 112])
def test_slopes_equal_those_of_bloom_and_mpt(num_heads):
    bloom = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)
    torch.testing.assert_close(slopes(num_heads), bloom[:, 0, 1])
    mpt = build_mpt_alibi_tensor(num_heads, 2)
    torch.testing.assert_close(slopes(num_heads), -mpt[:, 0, 0])


@pytest.mark.parametrize("num_heads", [1, 3, 8, 12])
def test_bias_before_the_query_equals_that_of_bloom_up_to_a_constant_for_each_query(num_heads):
    indices = torch.arange(LENGTH)
    ours = Alibi(num_heads)(indices, indices)
    theirs = build_alibi_tensor(torch.ones(1, LENGTH), num_heads, torch.float32)
    seen = causal_mask(LENGTH)
    difference = (ours - theirs).masked_fill(~seen, 0.0)
    # The query itself is always seen.
    constant = difference.diagonal(dim1=1, dim2=2)[..., None]
    torch.testing.assert_close(difference, (constant * seen), rtol=0, atol=1e-4)
