"""Sentences that nobody has translated, with maps of every kind."""

import math

import numpy as np

from tformer_cli.plotting.attention_maps import AttentionMaps, PartMaps, PositionTable


def table(kind, stacks, rows, columns, values) -> PositionTable:
    numbers = np.array([[-math.inf if one is None else one for one in row] for row in values])
    return PositionTable(kind, tuple(stacks), tuple(rows), tuple(columns), numbers)


WAVES = [10.0**-number for number in range(4)]
VECTORS = table("vectors", ["encoder"], [0, 1, 2], [0, 1], [[0.0, 1.0], [-0.5, 0.5], [2.0, 0.1]])
TURNS = table(
    "turns",
    ["encoder", "decoder"],
    list(range(5)),
    WAVES,
    [[math.cos(index * wave) for wave in WAVES] for index in range(5)],
)
BIAS = table("bias", ["decoder"], [1, 2], [-2, -1, 0], [[None, -1.0, 0.0], [None, -0.5, 0.0]])
WINDOW = table("bias", ["encoder"], [], [-2, -1, 0, 1, 2], [[None, 0.0, 0.0, 0.0, None]])


def maps(
    rows: list[str],
    columns: list[str],
    *,
    part: str = "cross",
    num_layers: int = 1,
    num_heads: int = 1,
) -> PartMaps:
    """Maps that all differ, whose first row sees its first column alone."""

    def weight(number: int, row: int, column: int) -> float:
        if row == 0:
            return float(column == 0)
        return 1 / (2 + number + row + column)

    weights = [
        [
            [
                [weight(layer * num_heads + head, row, column) for column in range(len(columns))]
                for row in range(len(rows))
            ]
            for head in range(num_heads)
        ]
        for layer in range(num_layers)
    ]
    layers, heads = tuple(range(1, num_layers + 1)), tuple(range(1, num_heads + 1))
    return PartMaps(part, tuple(rows), tuple(columns), layers, heads, np.array(weights))


def sentence(
    *parts: PartMaps, tables: tuple[PositionTable, ...] = (), source: str = "a b"
) -> AttentionMaps:
    return AttentionMaps(source, "A B", parts, tables)
