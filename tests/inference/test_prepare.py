"""A fused model is the same function, and leaves the model it came from alone."""

import pytest
import torch
from family import translating
from hypothesis import given
from model.test_encoder_decoder import small_model
from model.test_family import all_logits, member, source

from tformer_cli.device import autocast
from tformer_cli.inference.prepare import prepare_for_inference

V = 23
CPU = torch.device("cpu")


@given(translating)
@torch.inference_mode()
def test_a_fused_model_gives_the_same_logits(config):
    model, (ids, mask) = member(config), source()
    target = torch.randint(6, V, (len(ids), 7))
    expected = all_logits(model, ids, mask, target)
    torch.testing.assert_close(
        all_logits(prepare_for_inference(model, torch.device("cpu")), ids, mask, target), expected
    )


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
@given(config=translating)
@torch.inference_mode()
def test_weights_are_rounded_once_as_autocast_rounds_them_in_each_call(precision, config):
    model, (ids, mask) = member(config).float(), source()
    target = torch.randint(6, V, (len(ids), 7))
    with autocast(CPU, precision):
        expected = all_logits(prepare_for_inference(model, torch.device("cpu")), ids, mask, target)
        rounded = all_logits(
            prepare_for_inference(model, torch.device("cpu"), precision), ids, mask, target
        )
    # Weights that lie otherwise are summed in another order.
    torch.testing.assert_close(rounded, expected, rtol=0.02, atol=0.02)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    prepared = prepare_for_inference(model, torch.device("cpu"), precision)
    with autocast(CPU, precision):
        assert prepared.output(torch.zeros(2, config.dim)).dtype == precision
    assert prepared.stacks()[0].embeddings.tokens.weight.dtype == torch.float32


@pytest.mark.parametrize("tie", ["none", "all"])
def test_weights_that_are_not_fused_are_shared(tie):
    model = small_model(tie_embeddings=tie).train()
    prepared = prepare_for_inference(model, torch.device("cpu"))
    assert prepared.encoder.embeddings.tokens.weight is model.encoder.embeddings.tokens.weight
    ours, theirs = prepared.decoder.layers[0], model.decoder.layers[0]
    assert ours.feedforward.down.weight is theirs.feedforward.down.weight
    assert not any(module.training for module in prepared.modules())
    assert all(module.training for module in model.modules())
    assert set(dict(model.named_parameters())) == set(
        dict(small_model(tie_embeddings=tie).named_parameters())
    )


def test_weights_of_wide_outputs_lie_in_long_rows():
    model = small_model()
    prepared = prepare_for_inference(model, torch.device("cpu"))
    layer = prepared.decoder.layers[0]
    for wide in (prepared.output, layer.self_attention.projection, layer.self_attention.output):
        assert wide.weight.t().is_contiguous()
    assert layer.feedforward.down.weight.is_contiguous()
    assert torch.equal(prepared.output.weight, model.output.weight)
    assert model.output.weight.is_contiguous()


def test_fused_modules_of_a_kind_have_one_class():
    """torch.compile compiles code again for each class that it has not seen."""
    first, second = (
        prepare_for_inference(small_model(), torch.device("cpu")).decoder.layers[0]
        for _ in range(2)
    )
    for name, module in first.named_modules():
        assert type(module) is type(dict(second.named_modules())[name])
