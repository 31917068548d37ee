"""Attention maps and position tables against torch and the stacks; networks are unchanged."""

import math

import pytest
import torch
from family import LONGEST, encoder_decoders, masked_encoders, translating
from hypothesis import given
from hypothesis import strategies as st
from model.test_family import LENGTHS, B, S, T, V, lively, source
from torch import Tensor, nn
from torch.nn import functional

from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LearnedPositions,
    T5Positions,
)
from tformer_cli.inference.prepare import prepare_for_inference
from tformer_cli.kernels import attention as attention_kernel
from tformer_cli.kernels.attention import grouped_matmul
from tformer_cli.model.blocks.attention import Attention
from tformer_cli.model.blocks.bias import MASK_VALUE
from tformer_cli.model.blocks.latent import LatentAttention
from tformer_cli.model.build import build_model, build_network
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.inspection.attention_recorder import (
    LayerMaps,
    attention_maps,
    position_tables,
    source_attention,
)
from tformer_cli.model.layers import Stack
from tformer_cli.model.network import Network, Seq2Seq
from tformer_cli.plotting.attention_maps import PositionTable

D, H, LAYERS = 12, 3, 2


def small_model(norm_position: str = "pre") -> EncoderDecoder:
    config = EncoderDecoderConfig(
        dim=D,
        num_heads=H,
        feedforward_dim=14,
        num_encoder_layers=1,
        num_decoder_layers=LAYERS,
        norm_position=norm_position,
    )
    model = lively(build_model(config, source_size=V, target_size=V, seed=3))
    assert isinstance(model, EncoderDecoder)
    return model


def member(config) -> Network:
    return lively(build_network(config, source_size=V, target_size=V, seed=7))


def inputs(network: Network) -> tuple[Tensor, Tensor, Tensor]:
    """Sources with padding, and what a network of this kind reads beside them."""
    ids, mask = source()
    return ids, mask, torch.randint(6, V, (B, T)) if isinstance(network, Seq2Seq) else ids


def torch_weights(attention: Attention, states: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
    reference = nn.MultiheadAttention(D, H, batch_first=True).double()
    parts = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        reference.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        _, weights = reference(
            states,
            seen,
            seen,
            key_padding_mask=~mask,
            need_weights=True,
            average_attn_weights=False,
        )
    return weights


@torch.no_grad()
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_recorded_weights_are_those_of_torch_multihead_attention(norm_position):
    model = small_model(norm_position)
    ids, mask, target = inputs(model)
    seen: list[Tensor] = []
    for layer in model.decoder.layers:
        # The norm whose output cross-attention gets its queries from.
        before = layer.cross_attention_norm if norm_position == "pre" else layer.self_attention_norm
        before.register_forward_hook(lambda module, ins, output: seen.append(output))
    encoder, decoder = attention_maps(model, ids, mask, target)
    memory = model.encode(ids, mask).states
    for layer, states, maps in zip(model.decoder.layers, seen, decoder, strict=True):
        expected = torch_weights(layer.cross_attention, states, memory, mask)
        torch.testing.assert_close(maps.cross_attention, expected)
    if norm_position == "post":
        embedded = model.encoder.embeddings(ids, torch.arange(S))
        attention = model.encoder.layers[0].self_attention
        expected = torch_weights(attention, embedded, embedded, mask)
        torch.testing.assert_close(encoder[0].self_attention, expected)
    assert not torch.allclose(decoder[0].cross_attention, decoder[1].cross_attention)


def found_by(attention, weights: Tensor, values: Tensor) -> Tensor:
    """What an attention returns, by its recorded weights alone."""
    heads = grouped_matmul(weights, values)
    if isinstance(attention, LatentAttention):
        heads = heads @ attention.value.matrices().mT
    return attention.output(heads.transpose(1, 2).flatten(2))


@torch.no_grad()
@pytest.mark.parametrize("most_weights", [0, 1 << 20], ids=["kernel", "formula"])
@given(st.one_of(translating, masked_encoders))
def test_maps_times_values_are_what_the_fast_path_finds(most_weights, config):
    network = member(config)
    calls = {}

    def note(module, arguments, output) -> None:
        calls[module] = (arguments[1].values, output)

    every = [
        attention
        for stack in network.stacks()
        for layer in stack.each_layer()
        for attention in layer.attentions()
    ]
    for attention in every:
        attention.register_forward_hook(note)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_kernel, "MAX_NAIVE_WEIGHTS", most_weights)
        stacks = attention_maps(network, *inputs(network))
    recorded = [maps for stack in stacks for layer in stack for maps in layer if maps is not None]
    for attention, weights in zip(every, recorded, strict=True):
        values, output = calls[attention]
        torch.testing.assert_close(found_by(attention, weights, values), output)


def hidden(config, mask: Tensor) -> list[list[Tensor]]:
    """What no token of each stack may look at, for self-attention and for cross-attention."""
    padding = ~mask[:, None, None, :]
    if config.kind == "encoder_decoder":
        return [[padding], [torch.ones(T, T, dtype=torch.bool).triu(1), padding]]
    if config.kind == "masked_encoder":
        return [[padding]]
    behind = torch.ones(S + T, S + T, dtype=torch.bool).triu(1)
    if config.source_attention == "bidirectional":
        behind[:S, :S] = False
    return [[behind | functional.pad(padding, (0, T))]]


@torch.no_grad()
@given(st.one_of(translating, masked_encoders))
def test_rows_sum_to_one_and_padding_and_future_have_no_weight(config):
    network = member(config)
    ids, mask, target = inputs(network)
    stacks = attention_maps(network, ids, mask, target)
    for layers, forbidden in zip(stacks, hidden(config, mask), strict=True):
        for layer in layers:
            maps = [weights for weights in layer if weights is not None]
            for weights, never in zip(maps, forbidden, strict=True):
                torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
                assert weights.min() >= 0
                assert not weights[never.expand_as(weights)].any()


@torch.no_grad()
@given(encoder_decoders.filter(lambda config: config.sliding_window is not None))
def test_a_window_hides_all_that_is_farther_away(config):
    network = member(config)
    indices = torch.arange(T)
    far = (indices[:, None] - indices).abs() >= config.sliding_window
    _, decoder = attention_maps(network, *inputs(network))
    for layer in decoder:
        assert not layer.self_attention[far.expand_as(layer.self_attention)].any()
        assert layer.self_attention.diagonal(dim1=-2, dim2=-1).all()


@torch.no_grad()
@given(translating)
def test_a_fused_network_looks_at_the_same_tokens_and_recording_changes_neither(config):
    network = member(config)
    ids, mask, target = inputs(network)
    logits = network(ids, mask, target, torch.arange(target.numel()))
    expected = attention_maps(network, ids, mask, target)
    for one in (network, prepare_for_inference(network, torch.device("cpu"))):
        modules = list(one.modules())
        before = [(dict(vars(module)), dict(module._modules)) for module in modules]
        found = attention_maps(one, ids, mask, target)
        assert [(dict(vars(module)), dict(module._modules)) for module in modules] == before
        torch.testing.assert_close(found, expected)
        again = one(ids, mask, target, torch.arange(target.numel()))
        torch.testing.assert_close(again, logits)


@torch.no_grad()
@given(translating)
def test_the_way_to_the_source_is_the_mean_of_pieces_of_the_maps(config):
    model = member(config)
    ids, mask, target = inputs(model)
    pieces = [
        layer.self_attention[:, :, S:, :S]
        if layer.cross_attention is None
        else layer.cross_attention
        for layer in attention_maps(model, ids, mask, target)[-1]
    ]
    for num_layers, counted in ((None, pieces), (1, pieces[-1:])):
        heads = [head for layer in counted for head in layer.unbind(1)]
        expected = sum(heads) / len(heads)
        found = source_attention(model, ids, mask, target, num_layers)
        torch.testing.assert_close(found, expected)


@torch.no_grad()
@given(st.one_of(translating, masked_encoders))
def test_each_sentence_has_the_maps_that_it_has_alone(config):
    network = member(config)
    ids, mask, target = inputs(network)
    together = attention_maps(network, ids, mask, target)
    length = int(LENGTHS[1])
    own = ids[1:2, :length]
    beside = own if target is ids else target[1:2]
    alone = attention_maps(network, own, mask[1:2, :length], beside)
    for layers, others in zip(together, alone, strict=True):
        for layer, other in zip(layers, others, strict=True):
            for name in LayerMaps._fields:
                small = getattr(other, name)
                if small is not None:
                    compare(getattr(layer, name)[1], small[0], length)


def compare(padded: Tensor, small: Tensor, length: int) -> None:
    """Compare a map of a padded sentence of this length with that of the sentence alone."""
    for dim in (-2, -1):
        size, wanted = padded.shape[dim], small.shape[dim]
        # A target stands behind the padding of its source.
        kept = [index for index in range(size) if index < length or index >= size - wanted + length]
        padded = padded.index_select(dim, torch.tensor(kept[:wanted]))
    torch.testing.assert_close(padded, small)


NUM_POSITIONS = 7


def stacks(config, *, is_fused: bool = False) -> list[Stack]:
    network = lively(build_network(config, source_size=V, target_size=V, seed=7))
    return (prepare_for_inference(network, torch.device("cpu")) if is_fused else network).stacks()


def table(stack: Stack, kind: str) -> PositionTable | None:
    return next((one for one in position_tables(stack, NUM_POSITIONS) if one.kind == kind), None)


@torch.no_grad()
@given(st.one_of(translating, masked_encoders).filter(lambda config: not config.embedding_norm))
def test_vectors_are_what_embeddings_add(config):
    scale = config.embedding_scale or math.sqrt(config.dim)
    for stack in stacks(config):
        found = table(stack, "vectors")
        ids = torch.zeros(1, NUM_POSITIONS, dtype=torch.long)
        embedded = stack.embeddings(ids, torch.arange(NUM_POSITIONS))[0]
        added = embedded - stack.embeddings.tokens(ids[0]) * scale
        if found is None:
            torch.testing.assert_close(added, torch.zeros_like(added))
        else:
            assert (found.rows, found.columns) == (
                tuple(range(NUM_POSITIONS)),
                tuple(range(config.dim)),
            )
            torch.testing.assert_close(torch.from_numpy(found.values), added)


@torch.no_grad()
@given(st.one_of(translating, masked_encoders))
def test_turns_are_cosines_of_position_times_frequency(config):
    for stack in stacks(config):
        found = table(stack, "turns")
        assert (found is None) == (config.positions.kind != "rotary")
        if found is not None:
            angles = torch.outer(torch.arange(NUM_POSITIONS), torch.tensor(found.columns))
            expected = angles.double().cos() * stack.rotary.attention_factor
            values = torch.from_numpy(found.values).double()
            torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@given(st.one_of(translating, masked_encoders))
def test_a_bias_depends_on_distance_as_the_table_says(config):
    indices = torch.arange(NUM_POSITIONS)
    distances = (indices - indices[:, None]).tolist()
    for stack in stacks(config):
        found, added = table(stack, "bias"), stack.encode_positions(indices, indices)[1]
        if found is None:
            assert added is None
            continue
        assert len(found.rows) in (0, config.num_heads)
        for head, row in enumerate(
            added.expand(1, len(found.values), NUM_POSITIONS, NUM_POSITIONS)[0]
        ):
            values = dict(zip(found.columns, found.values[head].tolist(), strict=True))
            for query in range(NUM_POSITIONS):
                for key, distance in enumerate(distances[query]):
                    if distance in values:
                        expected = float(row[query, key])
                        expected = -math.inf if expected <= MASK_VALUE / 2 else expected
                        assert values[distance] == pytest.approx(expected)


@pytest.mark.parametrize("is_fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(
    ("config", "last"),
    [
        (EncoderDecoderConfig(dim=12, num_heads=3, positions=T5Positions()), [6, 0]),
        (DecoderOnlyConfig(dim=12, num_heads=3, positions=T5Positions()), [0]),
        (
            DecoderOnlyConfig(
                dim=12,
                num_heads=3,
                positions=T5Positions(),
                source_attention="bidirectional",
            ),
            [6],
        ),
    ],
    ids=["encoder_decoder", "causal", "bidirectional"],
)
def test_distances_end_where_nothing_is_seen(config, last, is_fused):
    found = [table(stack, "bias").columns for stack in stacks(config, is_fused=is_fused)]
    assert [(columns[0], columns[-1]) for columns in found] == [(-6, end) for end in last]


def test_learned_vectors_end_with_what_was_learned():
    config = EncoderDecoderConfig(
        dim=12, num_heads=3, positions=LearnedPositions(max_length=LONGEST)
    )
    (found,) = position_tables(stacks(config)[0], 1000)
    assert found.values.shape == (LONGEST, 12)
