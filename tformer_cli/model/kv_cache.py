"""What a decoder remembers of the rows it is writing: a value it receives, never owns.

The rows of a sentence share one row of columns, each with the key and the value of one token, and
a row sees the columns of its own tokens. So a row that goes on from another one's tokens copies
nothing but what it sees, a place whose sentence has ended takes another at once, and columns that
nobody sees any more are dropped from time to time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from tformer_cli.model.blocks.attention import KeyValue, KVShape

FIRST_COLUMNS = 32
# So many sentences are read from memory. There a CPU takes three to five times as long for small
# matrices with gaps between them as for those that lie one after the other, and torch as long for
# products of fewer than 400 multiplications. So there is room for a few columns at a time, and all
# are read, those too that nobody sees.
MIN_BATCHED_SLOTS = 16
COLUMNS_AT_A_TIME = 8
FEWEST_COLUMNS = 16


class Past(Protocol):
    """What a layer needs to know of the tokens before the newest ones."""

    @property
    def source(self) -> KeyValue:
        """Keys and values of the sources, (B, H, S, Dh)."""
        ...

    def append(self, new: KeyValue) -> KeyValue:
        """Take keys and values (B, H, K, Dh) of new tokens; return those of all target tokens."""
        ...

    def append_to_source(self, new: KeyValue) -> KeyValue:
        """Do the same; return those of the source and of all target tokens."""
        ...


class Cache(Protocol):
    """What a step needs to know of B sentences, with K rows each, that go on in columns."""

    @property
    def layers(self) -> Sequence[Past]:
        """One for each layer."""
        ...

    @property
    def source_lengths(self) -> Tensor:
        """Tokens of each source, (B,)."""
        ...

    @property
    def source_seen(self) -> Tensor | None:
        """What is added to the logits over source tokens, (B, 1, 1, S); None is nothing."""
        ...

    @property
    def longest_source(self) -> int:
        """S."""
        ...

    def advance(self) -> Tensor:
        """Make a new column for each row; return the places of its token, (B, K)."""
        ...

    def column_places(self) -> Tensor:
        """Return the place, in its row, of the token of each column that is read, (B, C)."""
        ...

    def visible(self) -> Tensor | None:
        """Return what is added to the logits over the columns read, (B, 1, K, C) or None."""
        ...

    def visible_stream(self) -> Tensor | None:
        """Return the same over source and columns, (B, 1, K, S + C) or None."""
        ...


@dataclass(slots=True)
class LayerKVCache:
    """Keys and values of one decoder layer.

    Attributes:
        keys: (B, Hkv, C, Dh) of target tokens, the columns in use first.
        values: likewise; latent attention has others than keys.
        used: columns in use.
        width: columns that are read, `used` or a few more.
        source_keys: (B, Hkv, Dh, S), made once a sentence, and laid out as a product with queries
            reads them: a component after the other.
        source_values: (B, Hkv, S, Dh).
        source: what queries look at of both, (B, Hkv, S', Dh), no wider than the longest source.
    """

    keys: Tensor
    values: Tensor
    used: int
    width: int
    source_keys: Tensor
    source_values: Tensor
    source: KeyValue

    def look_at_source(self, length: int) -> None:
        """Let queries look at so many tokens of the sources."""
        keys = self.source_keys[..., :length].transpose(2, 3)
        # torch's kernels, which a GPU and a single sentence go by, read a token after the other.
        keys = keys.contiguous() if len(keys) == 1 or keys.device.type == "cuda" else keys
        self.source = KeyValue(keys, self.source_values[:, :, :length])

    def fit_source(self, length: int) -> None:
        """Have room for so many tokens of the sources, and no more."""
        more = length - self.source_keys.shape[3]
        if more > 0:
            self.source_keys = pad(self.source_keys, (0, more))
            self.source_values = pad(self.source_values, (0, 0, 0, more))
        elif more < 0:
            self.source_keys = self.source_keys[..., :length].contiguous()
            self.source_values = self.source_values[:, :, :length].contiguous()

    def append(self, new: KeyValue) -> KeyValue:
        """Write keys and values (B, H, K, Dh) into the newest columns; return all that are read."""
        count = new.keys.shape[2]
        self.keys.narrow(2, self.used - count, count).copy_(new.keys)
        self.values.narrow(2, self.used - count, count).copy_(new.values)
        return KeyValue(self.keys.narrow(2, 0, self.width), self.values.narrow(2, 0, self.width))

    def append_to_source(self, new: KeyValue) -> KeyValue:
        """Write keys and values (B, H, K, Dh); return those of the source and all columns read."""
        source, own = self.source, self.append(new)
        keys = torch.cat((source.keys, own.keys), dim=2)
        return KeyValue(keys, torch.cat((source.values, own.values), dim=2))

    def lay_out(self, columns: Tensor) -> None:
        """Have these columns (B, C'), in this order."""
        self.keys, self.values = _laid_out(self.keys, columns), _laid_out(self.values, columns)

    def insert(self, places: Tensor, source: KeyValue) -> None:
        """Put keys and values of sources (B', H, S', Dh) in these places."""
        length = source.keys.shape[2]
        if length > self.source_keys.shape[3]:
            self.fit_source(length)
        # In fewer digits than float32, what has gone through a norm has more than what has not.
        keys, values = source.keys.to(self.source_keys), source.values.to(self.source_values)
        self.source_keys[places, :, :, :length] = keys.transpose(2, 3)
        self.source_values[places, :, :length] = values

    def select(self, places: Tensor, moved: Tensor) -> None:
        """Keep these sentences (B',), in this order.

        Args:
            places: where they are.
            moved: where those go that have another place from now on.
        """
        self.keys = _kept(self.keys, places, moved)
        self.values = _kept(self.values, places, moved)
        self.source_keys = _kept(self.source_keys, places, moved)
        self.source_values = _kept(self.source_values, places, moved)


@dataclass(slots=True)
class KVCache:
    """What the decoder remembers of B sentences, with K rows each.

    Attributes:
        widths: of what each layer remembers of a target token.
        layers: one cache for each decoder layer; there is none before the first sentence.
        seen: (B, K, C) what is added to the attention logits of each row: zero where it sees a
            column, minus infinity elsewhere.
        positions: (B, C) place, in its row, of the token of each column.
        lengths: (B,) target tokens that each row of a sentence has so far.
        source_lengths: (B,) tokens of each source.
        source_seen: (B, 1, 1, S) likewise for source tokens: minus infinity for padding; None where
            nothing is padded.
        own: (K, K) what rows see of each other's newest columns: their own one.
        used: columns in use.
        width: columns that are read, `used` or a few more, which nobody sees.
        is_plain: every row sees every column in use; `seen` is kept up where more are read.
    """

    widths: Sequence[KVShape]
    layers: list[LayerKVCache]
    seen: Tensor
    positions: Tensor
    lengths: Tensor
    source_lengths: Tensor
    source_seen: Tensor | None
    own: Tensor
    used: int
    width: int
    is_plain: bool

    @property
    def longest_source(self) -> int:
        """Tokens of the longest source."""
        return self.layers[0].source.keys.shape[2]

    def advance(self) -> Tensor:
        """Make a new column for each row; return the places of its token, (B, K)."""
        num_rows = len(self.own)
        if self.used + num_rows > self.seen.shape[2]:
            self._tidy()
        first, self.used = self.used, self.used + num_rows
        reads_all = self._reads_all()
        self.width = self.seen.shape[2] if reads_all else self.used
        for layer in self.layers:
            layer.used, layer.width = self.used, self.width
        if not self.is_plain or reads_all:
            self.seen[:, :, first : self.used] = self.own
        places = self.lengths[:, None].expand(-1, num_rows)
        self.positions[:, first : self.used] = places
        self.lengths = self.lengths + 1
        return places

    def column_places(self) -> Tensor:
        """Return the place, in its row, of the token of each column read, (B, width)."""
        return self.positions[:, : self.width]

    def visible(self) -> Tensor | None:
        """Return what is added to the logits over the columns read, (B, 1, K, width) or None."""
        if self.is_plain and self.width == self.used:
            return None
        return self.seen[:, None, :, : self.width]

    def visible_stream(self) -> Tensor | None:
        """Return the same over source and columns, (B, 1, K, S + width) or None."""
        source, own = self.source_seen, self.visible()
        if source is None and own is None:
            return None
        shape = (len(self.lengths), 1, len(self.own))
        if source is None:
            source = self.seen.new_zeros((*shape, self.longest_source))
        if own is None:
            own = self.seen.new_zeros((*shape, self.width))
        return torch.cat((source.expand(*shape, -1), own), dim=3)

    def reorder(self, origins: Tensor) -> None:
        """Let row k of a sentence go on from the tokens of row origins[b, k]; (B, K)."""
        rows = origins[:, :, None].expand(-1, -1, self.used)
        self.seen[:, :, : self.used] = self.seen[:, :, : self.used].gather(1, rows)

    def select(self, places: Tensor) -> None:
        """Keep these sentences (B',), in this order; one that comes twice is there twice."""
        stays = torch.arange(len(places), device=places.device)
        moved = (places != stays).nonzero()[:, 0]
        for layer in self.layers:
            layer.select(places, moved)
        self.seen, self.positions = self.seen[places], self.positions[places]
        self.lengths = self.lengths[places]
        self._set_sources(self.source_lengths[places])

    def insert(self, places: Tensor, sources: Sequence[KeyValue], source_mask: Tensor) -> None:
        """Begin sentences in these places (B').

        Args:
            places: whose sentences, if there are any, are forgotten.
            sources: for each layer, keys and values of the new sources, (B', H, S', Dh).
            source_mask: (B', S') real source tokens.
        """
        if not self.layers:
            self.layers = [
                self._new_layer(widths, source)
                for widths, source in zip(self.widths, sources, strict=True)
            ]
            self.seen, self.own = self.seen.to(sources[0].keys), self.own.to(sources[0].keys)
        for layer, source in zip(self.layers, sources, strict=True):
            layer.insert(places, source)
        if self.is_plain and self.used:
            self.seen[:, :, : self.used] = 0.0
            self.is_plain = False
        self.seen[places] = -math.inf
        self.lengths[places] = 0
        lengths = self.source_lengths.clone()
        lengths[places] = source_mask.sum(dim=1)
        self._set_sources(lengths)

    def _new_layer(self, widths: KVShape, source: KeyValue) -> LayerKVCache:
        num_places, _, num_columns = self.seen.shape
        _, num_heads, length, key_dim = source.keys.shape
        new = min(source, key=Tensor.element_size).new_zeros
        return LayerKVCache(
            keys=new((num_places, widths.num_heads, num_columns, widths.key)),
            values=new((num_places, widths.num_heads, num_columns, widths.value)),
            used=0,
            width=0,
            source_keys=new((num_places, num_heads, key_dim, length)),
            source_values=new((num_places, num_heads, length, source.values.shape[3])),
            source=source,
        )

    def _set_sources(self, lengths: Tensor) -> None:
        """Let the layers read no more of the sources than is needed."""
        self.source_lengths = lengths
        longest = int(lengths.max())
        if is_batched_on_cpu(lengths):
            longest = rounded_up(longest)
            for layer in self.layers:
                layer.fit_source(longest)
        for layer in self.layers:
            layer.look_at_source(longest)
        mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
        is_padded = not bool(mask.all())
        self.source_seen = unseen(mask, self.seen.dtype)[:, None, None] if is_padded else None

    def _reads_all(self) -> bool:
        """Return whether all columns are read that there is room for."""
        return len(self.own) == 1 and is_batched_on_cpu(self.lengths)

    def _tidy(self) -> None:
        """Drop the columns that no row sees, and make room."""
        num_rows, num_columns = len(self.own), self.used
        order = torch.arange(num_columns, device=self.lengths.device).expand(len(self.lengths), -1)
        if not self.is_plain:
            is_seen = (self.seen[:, :, :num_columns] == 0.0).any(dim=1)  # (B, used)
            num_columns = int(is_seen.sum(dim=1).max())
            order = is_seen.int().argsort(dim=1, descending=True, stable=True)[:, :num_columns]
        if self._reads_all():
            capacity = rounded_up(num_columns + 1)
        else:
            # Every step reads all columns in use, and to move one is as much work as to read it
            # three times: so the least work is done with room for sqrt(6 n / K) steps.
            steps = math.ceil(math.sqrt(6 * num_columns / num_rows))
            capacity = num_columns + num_rows * max(1, steps)
        # What is in the room behind does not matter, so long as it is a number.
        columns = pad(order, (0, capacity - num_columns))
        for layer in self.layers:
            layer.lay_out(columns)
        seen, positions = self.seen, self.positions
        self.seen = seen.new_full((*seen.shape[:2], capacity), -math.inf)
        columns = order[:, None, :].expand(-1, seen.shape[1], -1)
        self.seen[:, :, :num_columns] = seen.gather(2, columns)
        self.positions = positions.new_zeros((len(positions), capacity))
        self.positions[:, :num_columns] = positions.gather(1, order)
        self.used = num_columns


def _kept(content: Tensor, places: Tensor, moved: Tensor) -> Tensor:
    """Return these sentences (B',) of (B, ...); where there is room, those alone move that must."""
    if len(places) > len(content):
        return content[places]
    content[moved] = content[places[moved]]
    return content[: len(places)]


def _laid_out(content: Tensor, columns: Tensor) -> Tensor:
    """Return these columns (B, C') of keys or values (B, H, C, Dh), in this order."""
    batch, num_heads, num_columns, head_dim = content.shape
    # As rows of a matrix they are copied whole; an index over two dimensions goes by numbers.
    heads = torch.arange(batch * num_heads, device=content.device).view(batch, num_heads, 1)
    rows = heads * num_columns + columns[:, None]
    moved = content.flatten(0, 2).index_select(0, rows.flatten())
    return moved.view(batch, num_heads, -1, head_dim)


def is_batched_on_cpu(lengths: Tensor) -> bool:
    """Return whether a CPU reads sentences of these lengths (B,) from memory."""
    return len(lengths) >= MIN_BATCHED_SLOTS and lengths.device.type == "cpu"


def rounded_up(columns: int) -> int:
    """Return how many columns there is room for where so many are needed."""
    return max(FEWEST_COLUMNS, math.ceil(columns / COLUMNS_AT_A_TIME) * COLUMNS_AT_A_TIME)


def unseen(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zero where a mask is True, and minus infinity elsewhere."""
    hidden = torch.full((), -math.inf, dtype=dtype, device=mask.device)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, hidden)


def new_cache(
    widths: Sequence[KVShape], num_places: int, num_rows: int, device: torch.device
) -> KVCache:
    """Return a cache without sentences.

    Args:
        widths: of what each layer remembers of a target token.
        num_places: B, sentences that it is for.
        num_rows: K, the rows of each sentence.
        device: of the decoder.
    """
    lengths = torch.zeros(num_places, dtype=torch.long, device=device)
    reads_all = num_rows == 1 and is_batched_on_cpu(lengths)
    num_columns = FEWEST_COLUMNS if reads_all else max(FIRST_COLUMNS, 4 * num_rows)
    own = torch.full((num_rows, num_rows), -math.inf, device=device)
    return KVCache(
        widths=widths,
        layers=[],
        seen=torch.full((num_places, num_rows, num_columns), -math.inf, device=device),
        positions=torch.zeros((num_places, num_columns), dtype=torch.long, device=device),
        lengths=lengths,
        source_lengths=torch.zeros(num_places, dtype=torch.long, device=device),
        source_seen=None,
        own=own.fill_diagonal_(0.0),
        used=0,
        width=0,
        is_plain=num_rows == 1,
    )
