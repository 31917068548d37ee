"""What a decoder remembers of the rows it is writing: a value it receives, never owns.

The rows of a sentence share one row of columns, each with the key and the value of one token, and
a row sees the columns of its own tokens. So a row that goes on from another one's tokens copies
nothing but what it sees, a place whose sentence has ended takes another at once, and columns that
nobody sees any more are dropped from time to time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tformer_cli.model.attention import KeyValue

FIRST_COLUMNS = 32


@dataclass(slots=True)
class LayerCache:
    """Keys and values of one decoder layer.

    Attributes:
        keys: (B, H, C, Dh) of target tokens, the columns in use first.
        values: likewise.
        source: keys and values of the source, (B, H, S, Dh), made once a sentence.
        used: columns in use.
    """

    keys: Tensor
    values: Tensor
    source: KeyValue
    used: int = 0

    def append(self, new: KeyValue) -> KeyValue:
        """Write keys and values (B, H, K, Dh) into the newest columns; return all in use."""
        first = self.used - new.keys.shape[2]
        self.keys[:, :, first : self.used] = new.keys
        self.values[:, :, first : self.used] = new.values
        return KeyValue(self.keys[:, :, : self.used], self.values[:, :, : self.used])

    def lay_out(self, columns: Tensor, capacity: int) -> None:
        """Move the columns (B, used) to the front, in this order, of `capacity` columns."""
        self.keys = _laid_out(self.keys, columns, capacity)
        self.values = _laid_out(self.values, columns, capacity)
        self.used = columns.shape[1]

    def widen_source(self, num_tokens: int) -> None:
        """Make room for sources that are longer by so many tokens."""
        keys, values = self.source
        keys = pad(keys.transpose(2, 3), (0, num_tokens)).transpose(2, 3)
        self.source = KeyValue(keys, pad(values, (0, 0, 0, num_tokens)))

    def keep(self, places: Tensor) -> None:
        """Keep these sentences (B',), in this order."""
        self.keys, self.values = self.keys[places], self.values[places]
        keys, values = self.source
        self.source = readable(KeyValue(keys[places], values[places]))


@dataclass(slots=True)
class DecoderCache:
    """What the decoder remembers of B sentences, with K rows each.

    Attributes:
        layers: one cache for each decoder layer.
        seen: (B, K, C) what is added to the attention logits of each row: zero where it sees a
            column, minus infinity elsewhere.
        positions: (B, C) place, in its row, of the token of each column.
        lengths: (B,) target tokens that each row of a sentence has so far.
        source_seen: (B, S) likewise for source tokens: minus infinity for padding; None where
            nothing is padded.
        own: (K, K) what rows see of each other's newest columns: their own one.
        used: columns in use.
        is_plain: every row sees every column in use, and `seen` is not kept up.
    """

    layers: list[LayerCache]
    seen: Tensor
    positions: Tensor
    lengths: Tensor
    source_seen: Tensor | None
    own: Tensor
    used: int
    is_plain: bool

    def advance(self) -> Tensor:
        """Make a new column for each row; return the places of its token, (B, K)."""
        num_rows = len(self.own)
        if self.used + num_rows > self.seen.shape[2]:
            self._tidy(num_rows)
        first, self.used = self.used, self.used + num_rows
        for layer in self.layers:
            layer.used = self.used
        if not self.is_plain:
            self.seen[:, :, first : self.used] = self.own
        places = self.lengths[:, None].expand(-1, num_rows)
        self.positions[:, first : self.used] = places
        self.lengths = self.lengths + 1
        return places

    def visible(self) -> Tensor | None:
        """Return what is added to the logits over the columns in use, (B, 1, K, used) or None."""
        return None if self.is_plain else self.seen[:, None, :, : self.used]

    def visible_source(self) -> Tensor | None:
        """Return what is added to the logits over the source, (B, 1, 1, S) or None."""
        return None if self.source_seen is None else self.source_seen[:, None, None]

    def reorder(self, origins: Tensor) -> None:
        """Let row k of a sentence go on from the tokens of row origins[b, k]; (B, K)."""
        rows = origins[:, :, None].expand(-1, -1, self.used)
        self.seen[:, :, : self.used] = self.seen[:, :, : self.used].gather(1, rows)

    def keep(self, places: Tensor) -> None:
        """Keep these sentences (B',), in this order."""
        for layer in self.layers:
            layer.keep(places)
        self.seen, self.positions = self.seen[places], self.positions[places]
        self.lengths = self.lengths[places]
        if self.source_seen is not None:
            self.source_seen = self.source_seen[places]

    def admit(self, places: Tensor, sources: Sequence[KeyValue], source_mask: Tensor) -> None:
        """Begin sentences anew in these places (B',).

        Args:
            places: whose sentences are forgotten.
            sources: for each layer, keys and values of the new sources, (B', H, S', Dh).
            source_mask: (B', S') real source tokens.
        """
        length = source_mask.shape[1]
        seen = self._widened(length)
        for layer, source in zip(self.layers, sources, strict=True):
            layer.source.keys[places, :, :length] = source.keys
            layer.source.values[places, :, :length] = source.values
        seen[places] = -math.inf
        seen[places, :length] = unseen(source_mask, self.seen.dtype)
        self.source_seen = seen
        if self.is_plain:
            self.seen[:, :, : self.used] = 0.0
            self.is_plain = False
        self.seen[places] = -math.inf
        self.lengths[places] = 0

    def _widened(self, length: int) -> Tensor:
        """Make room for sources of some length; return what is seen of all sources, (B, S)."""
        batch, _, num_tokens, _ = self.layers[0].source.keys.shape
        seen = self.source_seen
        if seen is None:
            seen = self.seen.new_zeros((batch, num_tokens))
        more = max(0, length - num_tokens)
        if more:
            for layer in self.layers:
                layer.widen_source(more)
        return pad(seen, (0, more), value=-math.inf)

    def _tidy(self, num_rows: int) -> None:
        """Drop the columns that no row sees, and make room."""
        num_columns = self.used
        order = torch.arange(num_columns, device=self.lengths.device).expand(len(self.lengths), -1)
        if not self.is_plain:
            is_seen = (self.seen[:, :, :num_columns] == 0.0).any(dim=1)  # (B, used)
            num_columns = int(is_seen.sum(dim=1).max())
            order = is_seen.int().argsort(dim=1, descending=True, stable=True)[:, :num_columns]
        capacity = self.seen.shape[2]
        while num_columns + num_rows > capacity // 2:
            capacity *= 2
        for layer in self.layers:
            layer.lay_out(order, capacity)
        seen, positions = self.seen, self.positions
        self.seen = seen.new_empty((*seen.shape[:2], capacity))
        columns = order[:, None, :].expand(-1, seen.shape[1], -1)
        self.seen[:, :, :num_columns] = seen.gather(2, columns)
        self.positions = positions.new_empty((len(positions), capacity))
        self.positions[:, :num_columns] = positions.gather(1, order)
        self.used = num_columns


def _laid_out(content: Tensor, columns: Tensor, capacity: int) -> Tensor:
    """Return columns (B, n) of keys or values (B, H, C, Dh), in this order, with room behind."""
    batch, num_heads, _, head_dim = content.shape
    places = torch.arange(batch, device=content.device)[:, None]
    moved = content.new_zeros((batch, num_heads, capacity, head_dim))
    # Indexing puts (B, n) first; both sides are views in that order.
    moved.transpose(1, 2)[:, : columns.shape[1]] = content.transpose(1, 2)[places, columns]
    return moved


def unseen(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zero where a mask is True, and minus infinity elsewhere."""
    hidden = torch.full((), -math.inf, dtype=dtype, device=mask.device)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, hidden)


def readable(source: KeyValue) -> KeyValue:
    """Return the same keys and values, laid out for being read at every step.

    Keys lie the way in which a product with queries reads them, a component after the other.
    """
    keys = source.keys.transpose(2, 3).contiguous().transpose(2, 3)
    return KeyValue(keys, source.values.contiguous())


def new_cache(sources: list[KeyValue], source_mask: Tensor, num_rows: int) -> DecoderCache:
    """Return a cache with nothing written yet.

    Args:
        sources: for each decoder layer, keys and values of the source, (B, H, S, Dh).
        source_mask: (B, S) real source tokens.
        num_rows: K, the rows of each sentence.
    """
    batch, num_heads, _, head_dim = sources[0].keys.shape
    num_columns = max(FIRST_COLUMNS, 4 * num_rows)
    shape = (batch, num_heads, num_columns, head_dim)
    layers = [
        LayerCache(
            source.keys.new_zeros(shape),
            source.values.new_zeros(shape),
            readable(source),
        )
        for source in sources
    ]
    device, dtype = source_mask.device, sources[0].keys.dtype
    is_padded = not bool(source_mask.all())
    own = torch.full((num_rows, num_rows), -math.inf, dtype=dtype, device=device)
    return DecoderCache(
        layers,
        seen=torch.empty((batch, num_rows, num_columns), dtype=dtype, device=device),
        positions=torch.empty((batch, num_columns), dtype=torch.long, device=device),
        lengths=torch.zeros(batch, dtype=torch.long, device=device),
        source_seen=unseen(source_mask, dtype) if is_padded else None,
        own=own.fill_diagonal_(0.0),
        used=0,
        is_plain=num_rows == 1,
    )
