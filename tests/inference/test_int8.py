"""Linear layers of eight bits: near the exact ones, and each row by itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.inference.fuse import fused
from tformer_cli.inference.int8 import HIGHEST, Int8Linear, quantize_rows
from tformer_cli.model.build import build_model


def random_rows(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 10 ** torch.randint(
        -3, 4, (*shape[:-1], 1), generator=generator
    )


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 70))
def test_rounding_misses_by_half_a_step_at_most(seed, num_rows, width):
    rows = random_rows(seed, num_rows, width)
    rounded, scales = quantize_rows(rows)
    assert rounded.abs().max() <= HIGHEST
    missed = (rounded * scales - rows).abs()
    assert (missed <= scales * 0.501).all()


def test_a_row_of_zeros_stays_zero():
    layer = Int8Linear(nn.Linear(8, 5))
    torch.testing.assert_close(layer(torch.zeros(2, 8)), layer.bias.expand(2, 5))


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_products_are_those_of_the_rounded_numbers(bias):
    exact, states = nn.Linear(48, 24, bias=bias), random_rows(1, 3, 5, 48)
    layer = Int8Linear(exact)
    weight, weight_scales = quantize_rows(exact.weight)
    rounded, scales = quantize_rows(states.flatten(0, 1))
    products = (rounded.double() * scales) @ (weight.double() * weight_scales).T
    expected = products.view(3, 5, 24) + (exact.bias if bias else 0.0)
    torch.testing.assert_close(layer(states).double(), expected, rtol=1e-5, atol=1e-5)


@given(st.integers(0, 1000), st.integers(1, 40))
@torch.no_grad()
def test_the_company_of_a_row_changes_nothing(seed, num_rows):
    torch.manual_seed(0)
    layer, states = Int8Linear(nn.Linear(32, 16)), random_rows(seed, num_rows, 32)
    together = layer(states)
    for row, expected in zip(states, together, strict=True):
        assert torch.equal(layer(row[None])[0], expected)


@torch.no_grad()
def test_a_model_has_its_large_matrices_in_eight_bits_and_says_nearly_the_same():
    config = EncoderDecoderConfig(
        dim=192, num_heads=4, feedforward_dim=1536, num_encoder_layers=1, num_decoder_layers=1
    )
    model = build_model(config, source_size=1500, target_size=1500, seed=1).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ids = torch.randint(6, 1500, (4, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids, dtype=torch.bool)
    exact = model(ids, mask, ids, mask)
    twin = fused(model, torch.int8)
    assert twin.output.weight.dtype == torch.int8
    assert twin.decoder.layers[0].feedforward.inner.weight.dtype == torch.int8
    assert twin.decoder.layers[0].cross_attention.query.weight.dtype == torch.float32
    missed = (twin(ids, mask, ids, mask) - exact).norm() / exact.norm()
    assert 0 < missed < 0.03
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
