"""Linear layers with packed weights: the same map, for any number of rows."""

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model.blocks.test_linear import of_any_shape
from torch import nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.device import has_bfloat16_matmul, onednn_supports_bfloat16
from tformer_cli.inference import pack
from tformer_cli.inference.fuse import fused
from tformer_cli.inference.pack import SMALLEST, PackedLinear, pack_where_faster
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN"
)


@of_any_shape
@torch.no_grad()
def test_a_packed_map_is_the_map(shape, num_inputs, num_outputs, bias, seed):
    torch.manual_seed(seed)
    linear = nn.Linear(num_inputs, num_outputs, bias=bias)
    # Every other column, as what is left of a product may lie.
    states = torch.randn(*shape, 2 * num_inputs)[..., ::2]
    found = PackedLinear(linear)(states)
    torch.testing.assert_close(found, linear(states), rtol=1e-5, atol=1e-5)


@given(st.integers(0, 99), st.integers(1, 40))
@torch.no_grad()
def test_the_company_of_a_row_changes_rounding_alone(seed, num_rows):
    torch.manual_seed(seed)
    layer, states = PackedLinear(nn.Linear(48, 33)), torch.randn(num_rows, 48)
    together = layer(states)
    for row, expected in zip(states, together, strict=True):
        torch.testing.assert_close(layer(row[None])[0], expected, rtol=1e-5, atol=1e-6)


# oneDNN packs weights in bfloat16 on processors with AVX-512 or AVX-NE-CONVERT, and no others.
packs_bfloat16 = pytest.mark.skipif(
    not onednn_supports_bfloat16(), reason="oneDNN takes no weights in bfloat16 on this processor"
)


@packs_bfloat16
@torch.no_grad()
def test_weights_of_half_precision_take_any_states_and_give_their_own_format():
    linear, states = nn.Linear(48, 24), torch.randn(5, 48)
    narrow = nn.Linear(48, 24).bfloat16()
    narrow.load_state_dict(linear.state_dict())
    found = PackedLinear(narrow)(states)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), linear(states), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("dtype", "num_outputs", "prefers_onednn", "has_bfloat16_matmul", "is_packed"),
    [
        (torch.float32, SMALLEST // 64, True, False, True),
        (torch.float32, SMALLEST // 64 - 1, True, True, False),
        (torch.float32, SMALLEST // 64, False, True, False),
        pytest.param(torch.bfloat16, 1, False, True, True, marks=packs_bfloat16),
        (torch.bfloat16, SMALLEST // 64, True, False, False),
        (torch.float64, SMALLEST // 64, True, True, False),
    ],
)
def test_weights_are_packed_where_the_processor_gains_by_it(
    dtype, num_outputs, prefers_onednn, has_bfloat16_matmul, is_packed, monkeypatch
):
    monkeypatch.setattr(pack, "prefers_onednn", lambda: prefers_onednn)
    monkeypatch.setattr(pack, "has_bfloat16_matmul", lambda: has_bfloat16_matmul)
    linear = nn.Linear(64, num_outputs, dtype=dtype)
    found = pack_where_faster(linear)
    assert isinstance(found, PackedLinear) if is_packed else found is linear


@torch.no_grad()
def test_weights_of_half_precision_are_packed_by_processors_that_can_alone():
    linear, states = nn.Linear(48, 24).bfloat16(), torch.randn(5, 48).bfloat16()
    layer = pack_where_faster(linear)
    assert isinstance(layer, PackedLinear) == has_bfloat16_matmul()
    torch.testing.assert_close(layer(states), linear(states), rtol=0.02, atol=0.02)


def wide_model() -> Seq2Seq:
    """A model with matrices large enough to be pack."""
    config = EncoderDecoderConfig(
        dim=192, num_heads=4, feedforward_dim=768, num_encoder_layers=1, num_decoder_layers=1
    )
    return build_model(config, source_size=900, target_size=900, seed=1).eval()


@torch.no_grad()
def test_a_model_says_the_same_with_large_matrices_packed(monkeypatch):
    monkeypatch.setattr(pack, "prefers_onednn", lambda: True)
    model = wide_model()
    ids = torch.randint(6, 900, (4, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids, dtype=torch.bool)
    twin = fused(model)
    layer = twin.decoder.layers[0]
    for large in (twin.output, layer.feedforward.inner, layer.feedforward.outer):
        assert isinstance(large, PackedLinear)
    assert isinstance(layer.cross_attention.query, nn.Linear)
    torch.testing.assert_close(
        twin(ids, mask, ids, mask), model(ids, mask, ids, mask), rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
def test_packed_weights_are_there_once_when_nobody_holds_the_model(monkeypatch):
    monkeypatch.setattr(pack, "prefers_onednn", lambda: True)
    model = wide_model()
    plain = weakref.ref(model.decoder.layers[0].feedforward.inner.weight)
    twin = fused(model)
    assert plain() is not None
    del model
    gc.collect()
    assert plain() is None
    assert isinstance(twin.decoder.layers[0].feedforward.inner, PackedLinear)
