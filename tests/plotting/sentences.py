"""Sentences that nobody has translated, with maps of every kind."""

import math

from tformer_cli.plotting.sentence import Maps, Sentence, Table

WAVES = [10.0**-number for number in range(4)]
VECTORS = Table("vectors", ["encoder"], [0, 1, 2], [0, 1], [[0.0, 1.0], [-0.5, 0.5], [2.0, 0.1]])
TURNS = Table(
    "turns",
    ["encoder", "decoder"],
    list(range(5)),
    WAVES,
    [[math.cos(place * wave) for wave in WAVES] for place in range(5)],
)
BIAS = Table("bias", ["decoder"], [1, 2], [-2, -1, 0], [[None, -1.0, 0.0], [None, -0.5, 0.0]])
WINDOW = Table("bias", ["encoder"], [], [-2, -1, 0, 1, 2], [[None, 0.0, 0.0, 0.0, None]])


def maps(
    rows: list[str],
    columns: list[str],
    *,
    part: str = "cross",
    num_layers: int = 1,
    num_heads: int = 1,
) -> Maps:
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
    layers, heads = list(range(1, num_layers + 1)), list(range(1, num_heads + 1))
    return Maps(part, rows, columns, layers, heads, weights)


def sentence(*found: Maps, tables: tuple[Table, ...] = (), source: str = "a b") -> Sentence:
    return Sentence(source, "A B", found, tables)
