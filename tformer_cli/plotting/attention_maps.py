"""Attention maps and position tables of one sentence, as arrays with the tokens of their axes."""

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from tformer_cli.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

MapKind = Literal["encoder", "decoder", "cross"]
TableKind = Literal["vectors", "turns", "bias"]


@dataclass(frozen=True, slots=True, eq=False)
class PartMaps:
    """Attention weights of one kind of attention, for each layer and head."""

    part: MapKind
    rows: tuple[str, ...]  # query tokens: those read, in cross-attention those written
    columns: tuple[str, ...]  # key tokens
    layers: tuple[int, ...]  # numbers from 1
    heads: tuple[int, ...]  # numbers from 1
    weights: "np.ndarray[Any, Any]"  # (layers, heads, rows, columns); exactly 0 where masked

    def of_layer(self, number: int) -> "PartMaps":
        index = self.layers.index(number)
        return replace(self, layers=(number,), weights=self.weights[index : index + 1])

    def of_head(self, number: int) -> "PartMaps":
        index = self.heads.index(number)
        return replace(self, heads=(number,), weights=self.weights[:, index : index + 1])


@dataclass(frozen=True, slots=True, eq=False)
class PositionTable:
    """What positions contribute to stacks.

    `vectors` are added to embeddings, `turns` are the cosines of rotary embeddings, and a `bias` is
    added to attention logits by distance.
    """

    kind: TableKind
    stacks: tuple[str, ...]  # encoder, decoder or both
    rows: tuple[int, ...]  # positions; heads of a bias, none if all share it
    columns: tuple[float, ...]  # components; radians per token; tokens from query to key
    values: "np.ndarray[Any, Any]"  # (rows, columns), of a shared bias one row; -inf hides a key


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """All attention maps and position tables of a network over one sentence."""

    source: str
    target: str | None  # None if the network does not translate
    maps: tuple[PartMaps, ...]
    positions: tuple[PositionTable, ...]

    def select(
        self, part: str = "all", layer: int | None = None, head: int | None = None
    ) -> "AttentionMaps":
        """Return the maps of a part (`positions` for the tables alone), layer and head."""
        parts = [*(maps.part for maps in self.maps), *(["positions"] if self.positions else [])]
        if part not in ("all", *parts):
            what = "must be one that the network has"
            remedy = f"use {' or '.join(parts)}"
            raise UsageError("`part`", what, got=part, remedy=remedy)
        selected = [maps for maps in self.maps if part in ("all", maps.part)]
        for where, axis, number in (("`layer`", "layers", layer), ("`head`", "heads", head)):
            if number is None:
                continue
            if part == "positions":
                what = 'has no effect on `part="positions"`'
                raise UsageError(where, what, remedy="leave it out")
            highest = max(len(getattr(maps, axis)) for maps in selected)
            if number > highest:
                raise UsageError(
                    where, f"must be at most {highest}, the number of {axis}", got=str(number)
                )
            selected = [maps for maps in selected if number in getattr(maps, axis)]
        if layer is not None:
            selected = [maps.of_layer(layer) for maps in selected]
        if head is not None:
            selected = [maps.of_head(head) for maps in selected]
        tables = self.positions if part in ("all", "positions") else ()
        return replace(self, maps=tuple(selected), positions=tables)

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values: numbers with six digits, None for infinite ones."""
        maps = [{**_plain(part, "weights"), "shape": part.weights.shape} for part in self.maps]
        tables = [_plain(table, "values") for table in self.positions]
        return {"source": self.source, "target": self.target, "maps": maps, "positions": tables}


def _plain(part: PartMaps | PositionTable, array: str) -> dict[str, Any]:
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return values | {array: _rounded(values[array].tolist())}


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(value) for value in values]
    return float(f"{values:.6g}") if math.isfinite(values) else None
