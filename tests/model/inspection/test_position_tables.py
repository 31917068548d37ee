"""Tables of positions against what the stacks themselves are given."""

import math

import pytest
import torch
from family import LONGEST, masked_encoders, translating
from hypothesis import given
from hypothesis import strategies as st
from model.test_family import V, lively

from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LearnedPositions,
    T5Positions,
)
from tformer_cli.inference.fuse import fused
from tformer_cli.model.blocks.bias import FAR
from tformer_cli.model.build import build_network
from tformer_cli.model.inspection.position_tables import position_tables
from tformer_cli.model.stack import Stack
from tformer_cli.plotting.attention_maps import PositionTable

PLACES = 7


def stacks(config, *, is_fused: bool = False) -> list[Stack]:
    network = lively(build_network(config, source_size=V, target_size=V, seed=7))
    return (fused(network) if is_fused else network).stacks()


def table(stack: Stack, kind: str) -> PositionTable | None:
    return next((one for one in position_tables(stack, PLACES) if one.kind == kind), None)


@torch.no_grad()
@given(st.one_of(translating, masked_encoders))
def test_vectors_are_what_embeddings_add(config):
    for stack in stacks(config):
        found = table(stack, "vectors")
        ids = torch.zeros(1, PLACES, dtype=torch.long)
        added = stack.embeddings(ids, torch.arange(PLACES))[0] - stack.embeddings.tokens(
            ids[0]
        ) * math.sqrt(config.dim)
        if found is None:
            torch.testing.assert_close(added, torch.zeros_like(added))
        else:
            assert (found.rows, found.columns) == (tuple(range(PLACES)), tuple(range(config.dim)))
            torch.testing.assert_close(torch.from_numpy(found.values), added)


@torch.no_grad()
@given(st.one_of(translating, masked_encoders))
def test_turns_are_cosines_of_place_times_frequency(config):
    for stack in stacks(config):
        found = table(stack, "turns")
        assert (found is None) == (config.positions.kind != "rotary")
        if found is not None:
            angles = torch.outer(torch.arange(PLACES), torch.tensor(found.columns))
            expected = angles.double().cos() * stack.rotary.attention_factor
            values = torch.from_numpy(found.values).double()
            torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@given(st.one_of(translating, masked_encoders))
def test_a_bias_depends_on_distance_as_the_table_says(config):
    places = torch.arange(PLACES)
    distances = (places - places[:, None]).tolist()
    for stack in stacks(config):
        found, added = table(stack, "bias"), stack.places(places, places).bias
        if found is None:
            assert added is None
            continue
        assert len(found.rows) in (0, config.num_heads)
        for head, row in enumerate(added.expand(1, len(found.values), PLACES, PLACES)[0]):
            values = dict(zip(found.columns, found.values[head].tolist(), strict=True))
            for query in range(PLACES):
                for key, distance in enumerate(distances[query]):
                    if distance in values:
                        expected = float(row[query, key])
                        expected = -math.inf if expected <= FAR / 2 else expected
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


def test_learned_vectors_end_with_what_was_learnt():
    config = EncoderDecoderConfig(
        dim=12, num_heads=3, positions=LearnedPositions(max_length=LONGEST)
    )
    (found,) = position_tables(stacks(config)[0], 1000)
    assert found.values.shape == (LONGEST, 12)
