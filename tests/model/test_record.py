"""Recorded attention against torch's own layer, and a decoder that does not notice."""

import pytest
import torch
from torch import nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.attention import Attention
from tformer_cli.model.encoder import Memory
from tformer_cli.model.fusion import fused
from tformer_cli.model.record import cross_attention_weights
from tformer_cli.model.seq2seq import Seq2Seq, build_model

B, T, D, H, V, LAYERS = 2, 5, 12, 3, 23, 2


def small_model(norm_position: str) -> Seq2Seq:
    config = EncoderDecoderConfig(
        dim=D,
        num_heads=H,
        feedforward_dim=14,
        num_encoder_layers=1,
        num_decoder_layers=LAYERS,
        norm_position=norm_position,
    )
    model = build_model(config, source_size=V, target_size=V, seed=3).double().eval()
    torch.manual_seed(4)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model


def inputs(model: Seq2Seq) -> tuple[torch.Tensor, Memory]:
    torch.manual_seed(5)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    return torch.randint(6, V, (B, T)), model.encode(torch.randint(6, V, (B, 7)), mask)


def torch_weights(attention: Attention, states: torch.Tensor, memory: Memory) -> torch.Tensor:
    reference = nn.MultiheadAttention(D, H, batch_first=True).double()
    parts = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        reference.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        _, weights = reference(
            states,
            memory.states,
            memory.states,
            key_padding_mask=~memory.mask,
            need_weights=True,
            average_attn_weights=False,
        )
    return weights


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_recorded_weights_are_those_of_torch_multihead_attention(norm_position):
    model = small_model(norm_position)
    target, memory = inputs(model)
    seen: list[torch.Tensor] = []
    for layer in model.decoder.layers:
        # The norm whose output cross-attention gets its queries from.
        before = layer.cross_attention_norm if norm_position == "pre" else layer.self_attention_norm
        before.register_forward_hook(lambda module, ins, output: seen.append(output))
    with torch.no_grad():
        found = cross_attention_weights(model.decoder, target, memory)
        expected = [
            torch_weights(layer.cross_attention, states, memory)
            for layer, states in zip(model.decoder.layers, seen, strict=True)
        ]
    assert len(found) == LAYERS
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(found[0], found[1])


@torch.no_grad()
def test_a_fused_model_looks_at_the_same_tokens():
    model = small_model("pre")
    target, memory = inputs(model)
    expected = cross_attention_weights(model.decoder, target, memory)
    torch.testing.assert_close(
        cross_attention_weights(fused(model).decoder, target, memory), expected
    )


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda model: model, fused], ids=["plain", "fused"])
def test_recording_leaves_the_decoder_as_it_was(make):
    model = make(small_model("post"))
    target, memory = inputs(model)
    modules = [model.decoder, *model.decoder.layers]
    parts = [(dict(vars(module)), dict(module._modules)) for module in modules]
    expected = model.decoder(target, memory)
    cross_attention_weights(model.decoder, target, memory)
    torch.testing.assert_close(model.decoder(target, memory), expected, rtol=0, atol=0)
    assert [(dict(vars(module)), dict(module._modules)) for module in modules] == parts
