"""Linear layers of fixed weights: the same map, for any number of rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.device import has_bfloat16_matmul, has_vnni, onednn_supports_bfloat16
from tformer_cli.inference import linear as linears
from tformer_cli.inference.linear import (
    MAX_INT8,
    MIN_PACKED_WEIGHTS,
    Int8Linear,
    PackedLinear,
    pack_where_faster,
    prepare_linear,
    quantize_rows,
)
from tformer_cli.inference.prepare import prepare_for_inference
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN"
)
of_any_shape = given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 70),
    st.integers(1, 70),
    st.booleans(),
    st.integers(0, 99),
)


@of_any_shape
@torch.no_grad()
def test_a_prepared_map_is_the_map(shape, num_inputs, num_outputs, bias, seed):
    torch.manual_seed(seed)
    linear = nn.Linear(num_inputs, num_outputs, bias=bias).double()
    # Every other column, as what is left of a product may lie.
    states = torch.randn(*shape, 2 * num_inputs, dtype=torch.float64)[..., ::2]
    before = linear.weight.clone()
    prepared = prepare_linear(linear, torch.device("cpu"), torch.float32)
    found = prepared(states)
    torch.testing.assert_close(found, linear(states))
    assert found.is_contiguous()
    assert torch.equal(prepared.weight, before)
    assert prepared.weight.t().is_contiguous() or num_outputs < num_inputs


@needs_onednn
@pytest.mark.parametrize("num_rows", [1, 2, 9])
@torch.no_grad()
def test_a_single_row_is_the_same_map_as_more(num_rows, monkeypatch):
    monkeypatch.setattr(linears, "prefers_onednn", lambda: True)
    torch.manual_seed(1)
    linear = nn.Linear(64, MIN_PACKED_WEIGHTS // 64)
    prepared = prepare_linear(linear, torch.device("cpu"), torch.float32)
    assert isinstance(prepared.many, PackedLinear)
    states = torch.randn(num_rows, 1, 64)
    torch.testing.assert_close(prepared(states), linear(states), rtol=1e-5, atol=1e-5)


@needs_onednn
@of_any_shape
@torch.no_grad()
def test_a_packed_map_is_the_map(shape, num_inputs, num_outputs, bias, seed):
    torch.manual_seed(seed)
    linear = nn.Linear(num_inputs, num_outputs, bias=bias)
    # Every other column, as what is left of a product may lie.
    states = torch.randn(*shape, 2 * num_inputs)[..., ::2]
    found = PackedLinear(linear)(states)
    torch.testing.assert_close(found, linear(states), rtol=1e-5, atol=1e-5)


@needs_onednn
@given(st.integers(0, 99), st.integers(1, 40))
@torch.no_grad()
def test_the_batch_of_a_row_changes_rounding_alone(seed, num_rows):
    torch.manual_seed(seed)
    layer, states = PackedLinear(nn.Linear(48, 33)), torch.randn(num_rows, 48)
    together = layer(states)
    for row, expected in zip(states, together, strict=True):
        torch.testing.assert_close(layer(row[None])[0], expected, rtol=1e-5, atol=1e-6)


# oneDNN packs weights in bfloat16 on processors with AVX-512 or AVX-NE-CONVERT, and no others.
exact_int8 = pytest.mark.skipif(
    torch.cpu._is_vnni_supported() and not has_vnni(),
    reason="oneDNN may not use VNNI, and saturates; `precision` int8 is refused",
)
packs_bfloat16 = pytest.mark.skipif(
    not onednn_supports_bfloat16(), reason="oneDNN takes no weights in bfloat16 on this processor"
)


@needs_onednn
@packs_bfloat16
@torch.no_grad()
def test_weights_of_half_precision_take_any_states_and_give_their_own_format():
    linear, states = nn.Linear(48, 24), torch.randn(5, 48)
    narrow = nn.Linear(48, 24).bfloat16()
    narrow.load_state_dict(linear.state_dict())
    found = PackedLinear(narrow)(states)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), linear(states), rtol=0.02, atol=0.02)


@needs_onednn
@pytest.mark.parametrize(
    ("dtype", "num_outputs", "prefers_onednn", "has_bfloat16_matmul", "is_packed"),
    [
        (torch.float32, MIN_PACKED_WEIGHTS // 64, True, False, True),
        (torch.float32, MIN_PACKED_WEIGHTS // 64 - 1, True, True, False),
        (torch.float32, MIN_PACKED_WEIGHTS // 64, False, True, False),
        pytest.param(torch.bfloat16, 1, False, True, True, marks=packs_bfloat16),
        (torch.bfloat16, MIN_PACKED_WEIGHTS // 64, True, False, False),
        (torch.float64, MIN_PACKED_WEIGHTS // 64, True, True, False),
    ],
)
def test_weights_are_packed_where_the_processor_gains_by_it(
    dtype, num_outputs, prefers_onednn, has_bfloat16_matmul, is_packed, monkeypatch
):
    monkeypatch.setattr(linears, "prefers_onednn", lambda: prefers_onednn)
    monkeypatch.setattr(linears, "has_bfloat16_matmul", lambda: has_bfloat16_matmul)
    linear = nn.Linear(64, num_outputs, dtype=dtype)
    found = pack_where_faster(linear)
    assert isinstance(found, PackedLinear) if is_packed else found is linear


@needs_onednn
@torch.no_grad()
def test_weights_of_half_precision_are_packed_by_processors_that_can_alone():
    linear, states = nn.Linear(48, 24).bfloat16(), torch.randn(5, 48).bfloat16()
    layer = pack_where_faster(linear)
    assert isinstance(layer, PackedLinear) == has_bfloat16_matmul()
    torch.testing.assert_close(layer(states), linear(states), rtol=0.02, atol=0.02)


def wide_model() -> Seq2Seq:
    """A model with matrices large enough to be packed."""
    config = EncoderDecoderConfig(
        dim=192, num_heads=4, feedforward_dim=768, num_encoder_layers=1, num_decoder_layers=1
    )
    return build_model(config, source_size=900, target_size=900, seed=1).eval()


@needs_onednn
@torch.no_grad()
def test_a_model_says_the_same_with_large_matrices_packed(monkeypatch):
    monkeypatch.setattr(linears, "prefers_onednn", lambda: True)
    model = wide_model()
    ids = torch.randint(6, 900, (4, 9), generator=torch.Generator().manual_seed(2))
    inputs = ids, torch.ones_like(ids, dtype=torch.bool), ids, torch.arange(ids.numel())
    prepared = prepare_for_inference(model, torch.device("cpu"))
    layer = prepared.decoder.layers[0]
    for large in (prepared.output, layer.feedforward.up, layer.feedforward.down):
        assert isinstance(large.many, PackedLinear)
    assert isinstance(layer.cross_attention.query.many, nn.Linear)
    torch.testing.assert_close(prepared(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


def random_rows(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 10 ** torch.randint(
        -3, 4, (*shape[:-1], 1), generator=generator
    )


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 70))
def test_rounding_misses_by_half_a_step_at_most(seed, num_rows, width):
    rows = random_rows(seed, num_rows, width)
    rounded, scales = quantize_rows(rows)
    assert rounded.abs().max() <= MAX_INT8
    missed = (rounded * scales - rows).abs()
    assert (missed <= scales * 0.501).all()


def test_a_row_of_zeros_stays_zero():
    layer = Int8Linear(nn.Linear(8, 5))
    torch.testing.assert_close(layer(torch.zeros(2, 8)), layer.bias.expand(2, 5))


@exact_int8
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
def test_the_batch_of_a_row_changes_nothing(seed, num_rows):
    torch.manual_seed(0)
    layer, states = Int8Linear(nn.Linear(32, 16)), random_rows(seed, num_rows, 32)
    together = layer(states)
    for row, expected in zip(states, together, strict=True):
        assert torch.equal(layer(row[None])[0], expected)


@exact_int8
@torch.no_grad()
def test_a_model_has_its_large_matrices_in_eight_bits_and_says_nearly_the_same():
    config = EncoderDecoderConfig(
        dim=192, num_heads=4, feedforward_dim=1536, num_encoder_layers=1, num_decoder_layers=1
    )
    model = build_model(config, source_size=1500, target_size=1500, seed=1).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ids = torch.randint(6, 1500, (4, 9), generator=torch.Generator().manual_seed(2))
    inputs = ids, torch.ones_like(ids, dtype=torch.bool), ids, torch.arange(ids.numel())
    exact = model(*inputs)
    prepared = prepare_for_inference(model, torch.device("cpu"), torch.int8)
    assert prepared.output.weight.dtype == torch.int8
    assert prepared.decoder.layers[0].feedforward.up.weight.dtype == torch.int8
    assert prepared.decoder.layers[0].cross_attention.query.weight.dtype == torch.float32
    missed = (prepared(*inputs) - exact).norm() / exact.norm()
    assert 0 < missed < 0.03
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
