"""Layers that are computed again: the same bits, from less that is kept."""

from collections.abc import Iterator

import pytest
import torch
from family import translating
from hypothesis import given, settings
from torch import Tensor

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.padding import flat_positions

B, S, T, V, D = 3, 5, 7, 23, 12
FLOAT_BYTES = 4
LENGTHS = torch.tensor([[5], [3], [4]])


def small_config(**changes) -> EncoderDecoderConfig:
    defaults = {"dim": D, "num_heads": 3, "feedforward_dim": 17, "dropout": 0.3}
    counts = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    return EncoderDecoderConfig(**(defaults | counts | changes))


def small_model(config: EncoderDecoderConfig, *, is_recomputing: bool) -> Seq2Seq:
    model = build_model(config, source_size=V, target_size=V, seed=5).train()
    if is_recomputing:
        model.enable_gradient_checkpointing()
    return model


def logits(model: Seq2Seq) -> Tensor:
    source_mask = torch.arange(S) < LENGTHS
    source = torch.arange(B * S).view(B, S) % V * source_mask
    target = torch.arange(B * T).view(B, T) % V
    positions = flat_positions(torch.arange(T) < LENGTHS + 2)
    return model(source, source_mask, target, positions)


@settings(max_examples=8)
@given(translating)
def test_gradients_are_equal_to_the_bit_with_dropout(config):
    found = []
    for is_recomputing in (False, True):
        model = small_model(config, is_recomputing=is_recomputing)
        torch.manual_seed(11)
        # Two in a row: what the second draws must not depend on what the first drew again.
        for _ in range(2):
            logits(model).logsumexp(dim=-1).sum().backward()
        found.append([weight.grad for weight in model.parameters()])
    for kept, recomputed in zip(*found, strict=True):
        assert torch.equal(kept, recomputed)
    assert all(gradient.isfinite().all() for gradient in found[0])
    assert any(gradient.any() for gradient in found[0])


def tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors(part)


def kept_bytes(model: Seq2Seq) -> int:
    """Bytes that are held from the forward to the backward pass, the weights aside.

    That is what the graph saves outside recomputed layers, and the inputs of all layers.
    """
    held: list[Tensor] = []

    def hold(module: torch.nn.Module, inputs: tuple[object, ...]) -> None:
        held.extend(tensors(inputs))

    hooks = [
        layer.register_forward_pre_hook(hold)
        for stack in (model.encoder, model.decoder)
        for layer in stack.layers
    ]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x) or x, lambda x: x):
        logits(model)
    for hook in hooks:
        hook.remove()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in held}
    return sum(size for position, size in storages.items() if position not in weights)


def test_a_layer_that_is_recomputed_keeps_its_inputs_alone():
    def of_layer(stack: str, *, is_recomputing: bool) -> int:
        few, more = (
            small_model(small_config(**{stack: count}), is_recomputing=is_recomputing)
            for count in (2, 3)
        )
        return kept_bytes(more) - kept_bytes(few)

    states = B * S * D * FLOAT_BYTES
    assert of_layer("num_encoder_layers", is_recomputing=True) == states
    assert of_layer("num_encoder_layers", is_recomputing=False) > 10 * states
    # A decoder layer has keys and values of the source as well, made outside of it.
    states = B * T * D * FLOAT_BYTES + 2 * B * S * D * FLOAT_BYTES
    assert of_layer("num_decoder_layers", is_recomputing=True) == states
    assert of_layer("num_decoder_layers", is_recomputing=False) > 5 * states


@pytest.mark.parametrize("is_training", [True, False])
def test_layers_are_computed_again_in_training_only(is_training):
    model = small_model(small_config(), is_recomputing=True).train(is_training)
    calls: list[str] = []
    layer = model.encoder.layers[0]
    layer.register_forward_pre_hook(lambda module, inputs: calls.append("layer"))
    logits(model).sum().backward()
    assert len(calls) == (2 if is_training else 1)
