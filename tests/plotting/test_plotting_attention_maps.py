"""Selections of maps, and their JSON."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from sentences import BIAS, VECTORS, maps, sentence

from tformer_cli.errors import UsageError

ENCODER = maps(["a", "b"], ["a", "b"], part="encoder", num_layers=3, num_heads=2)
CROSS = maps(["A"], ["a", "b"], num_layers=2, num_heads=4)
ALL = sentence(ENCODER, CROSS, tables=(VECTORS, BIAS))


def test_a_layer_and_a_head_of_maps_can_be_selected():
    one = CROSS.of_layer(2).of_head(3)
    assert (one.layers, one.heads) == ((2,), (3,))
    np.testing.assert_array_equal(one.weights, CROSS.weights[1:2, 2:3])


@pytest.mark.parametrize(
    ("selection", "shapes", "num_tables"),
    [
        ({}, [(3, 2, 2, 2), (2, 4, 1, 2)], 2),
        ({"part": "cross"}, [(2, 4, 1, 2)], 0),
        ({"part": "positions"}, [], 2),
        # Only the encoder has a third layer, and only cross-attention a third head.
        ({"layer": 3}, [(1, 2, 2, 2)], 2),
        ({"layer": 1, "head": 3}, [(1, 1, 1, 2)], 2),
        ({"part": "encoder", "head": 2}, [(3, 1, 2, 2)], 0),
    ],
)
def test_a_selection_has_the_maps_that_were_asked_for(selection, shapes, num_tables):
    selected = ALL.select(**selection)
    assert [part.weights.shape for part in selected.maps] == shapes
    assert len(selected.positions) == num_tables
    assert (selected.source, selected.target) == (ALL.source, ALL.target)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (
            {"part": "decoder"},
            "`part`: must be one that the network has (decoder); use encoder or cross or positions",
        ),
        ({"layer": 4}, "`layer`: must be at most 3, the number of layers (4)"),
        ({"part": "encoder", "head": 3}, "`head`: must be at most 2, the number of heads (3)"),
        (
            {"part": "positions", "layer": 1},
            '`layer`: has no effect on `part="positions"`; leave it out',
        ),
    ],
)
def test_what_the_network_does_not_have_is_refused(selection, message):
    with pytest.raises(UsageError) as caught:
        ALL.select(**selection)
    assert str(caught.value) == message


def test_json_has_six_digits_and_null_for_hidden_keys():
    thirds = replace(CROSS, weights=np.full((2, 4, 1, 2), 1 / 3, np.float32))
    plain = json.loads(json.dumps(sentence(thirds, tables=(BIAS,)).as_plain()))
    (part,), (table,) = plain["maps"], plain["positions"]
    assert part["weights"][0][0] == [[0.333333, 0.333333]]
    assert part["shape"] == [2, 4, 1, 2]
    assert (part["rows"], part["columns"]) == (["A"], ["a", "b"])
    expected = [[None if one == -math.inf else one for one in row] for row in BIAS.values]
    assert table["values"] == expected
    assert (table["kind"], table["stacks"]) == ("bias", ["decoder"])
