"""What there is to draw of one sentence, as plain numbers and texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Maps:
    """Where the tokens of one kind of attention look.

    Attributes:
        part: `encoder` and `decoder` look at themselves, `cross` from the decoder at the source.
        rows: the tokens that look.
        columns: the tokens that they look at.
        layers: their numbers, counted from 1.
        heads: their numbers, counted from 1.
        weights: of each layer and each head a matrix of rows and columns, from 0 to 1; exactly 0
            where a token may not look.
    """

    part: Literal["encoder", "decoder", "cross"]
    rows: Sequence[str]
    columns: Sequence[str]
    layers: Sequence[int]
    heads: Sequence[int]
    weights: Sequence[Sequence[Matrix]]


@dataclass(frozen=True, slots=True)
class Table:
    """What some stacks know of places.

    Attributes:
        kind: `vectors` added to embeddings, `turns` of queries and keys, or a `bias` of attention.
        stacks: which ones: encoder, decoder or both.
        rows: the places; of a bias the heads, or none where all are alike.
        columns: components of the vectors; radians a token of each pair of components that is
            turned; or how many tokens a key stands behind its query.
        values: of each row: the vector, the cosines, or what is added, None where a key is hidden.
    """

    kind: Literal["vectors", "turns", "bias"]
    stacks: Sequence[str]
    rows: Sequence[int]
    columns: Sequence[float]
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Sentence:
    """All of it.

    Attributes:
        source: the sentence.
        target: its translation; None where there is none.
        maps: of each kind of attention.
        positions: what the stacks know of places.
    """

    source: str
    target: str | None
    maps: Sequence[Maps]
    positions: Sequence[Table]


MAP_TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
MAP_NOTES = {
    "encoder": "a row is a source token, a column what it looks at",
    "decoder": "a row is a token that is read, a column what it looks at",
    "cross": "a row is the step that writes a token, a column the source token it looks at",
}
TABLE_TITLES = {
    "vectors": "Position vectors",
    "turns": "Rotary turns",
    "bias": "Attention bias by distance",
}
TABLE_NOTES = {
    "vectors": "what is added to the embedding of a token at each place",
    "turns": "the cosine of the angle by which each pair of components is turned at each place",
    "bias": "what is added to the logits of each head; where a line ends, nothing is seen",
}

# A longer token is cut in a label, and one of nothing but blanks has another character for each.
MAX_CHARACTERS = 24
BLANK = "␣"


def shown(token: str) -> str:
    """Return a token as a label: on one line, not too long, and a blank as something to see."""
    if not token.strip(" "):
        return BLANK * len(token)
    line = "".join(
        ascii(one)[1:-1] if one < " " or "\x7f" <= one < "\xa0" else one for one in token
    )
    return line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 1]}…"


def labels(sentence: Sentence) -> list[str]:
    """Return all tokens as they are shown."""
    return [shown(token) for maps in sentence.maps for token in (*maps.rows, *maps.columns)]


def table_title(table: Table) -> str:
    """Return the title of a table, with the stacks that have it."""
    return f"{TABLE_TITLES[table.kind]} of the {' and the '.join(table.stacks)}"
