"""KV cache: keys and values of earlier tokens, an argument of every decoding step.

A slot of the batch holds a sentence; a cell of a slot holds the key-values of a target token. The
beams of a sentence share its cells. A mask says which cells each beam sees, so a reordering of
beams copies the mask and no keys or values. See `KVCache`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from tformer_cli.kernels.attention import arrange_keys, prefers_contiguous
from tformer_cli.kernels.attention_mask import additive_mask
from tformer_cli.model.blocks.attention import KeyValue, KVShape

INITIAL_CAPACITY = 32
# Where attention prefers contiguous keys, capacity grows by a few cells at a time, and all of it is
# read. Products of fewer than 400 multiplications take three to five times as long as others.
CAPACITY_STEP = 8
MIN_CAPACITY = 16


class LayerCache(ABC):
    """What a layer reads of a cache, and appends to it."""

    source: KeyValue

    @abstractmethod
    def append(self, new: KeyValue) -> KeyValue:
        """Append key-values (B, H, K, Dh) of new tokens; return those of all target tokens."""

    def append_to_source(self, new: KeyValue) -> KeyValue:
        """Append key-values; return those of the source and of all target tokens."""
        return concatenate(self.source, self.append(new))


class DecoderCache(ABC):
    """What a decoding step reads of a cache."""

    layers: Sequence[LayerCache]
    source_lengths: Tensor  # (B,)
    source_mask: Tensor | None  # (B, 1, 1, S) additive mask of source padding; None without padding

    @abstractmethod
    def advance(self) -> Tensor:
        """Allocate the next cell of each beam; return the positions (B, K) of its tokens."""

    @abstractmethod
    def key_positions(self) -> Tensor:
        """Return the positions of the tokens in the cells read, (B, C')."""

    @abstractmethod
    def mask(self) -> Tensor | None:
        """Return the additive mask of the cells read, (B, 1, K, C'); None: one beam sees all."""

    @property
    def source_length(self) -> int:
        """S, tokens of the longest source."""
        return self.layers[0].source.keys.shape[2]

    def joint_mask(self) -> Tensor | None:
        """Return the additive mask of source and cells read, (B, 1, K, S + C') or None."""
        source, target = self.source_mask, self.mask()
        if target is None:
            if source is None:
                return None
            target = source.new_zeros((source.shape[0], 1, 1, self.key_positions().shape[1]))
        shape = target.shape[:3]
        if source is None:
            source = target.new_zeros((*shape, self.source_length))
        return torch.cat((source.expand(*shape, -1), target), dim=3)


class LayerKVCache(LayerCache):
    """Keys and values of one layer, for B slots with C cells each.

    Source key-values (B', Hkv, S, Dh) are an example of shapes and number format.
    """

    def __init__(self, shape: KVShape, source: KeyValue, num_slots: int, capacity: int) -> None:
        _, num_heads, length, key_dim = source.keys.shape
        zeros = min(source, key=Tensor.element_size).new_zeros
        self.keys = zeros((num_slots, shape.num_heads, capacity, shape.key_dim))
        self.values = zeros((num_slots, shape.num_heads, capacity, shape.value_dim))
        self.length = 0  # cells in use
        self.read_length = 0  # cells that attention reads, `length` or more
        # (B, Hkv, Dh, S): keys are transposed as the product with queries reads them.
        self.source_keys = zeros((num_slots, num_heads, key_dim, length))
        self.source_values = zeros((num_slots, num_heads, length, source.values.shape[3]))
        self.source = source  # view of both up to the longest source, (B, Hkv, S', Dh)

    def append(self, new: KeyValue) -> KeyValue:
        """Write key-values (B, H, K, Dh) into the newest K cells; return all that are read."""
        count = new.keys.shape[2]
        self.keys.narrow(2, self.length - count, count).copy_(new.keys)
        self.values.narrow(2, self.length - count, count).copy_(new.values)
        length = self.read_length
        return KeyValue(self.keys.narrow(2, 0, length), self.values.narrow(2, 0, length))

    def insert(self, slots: Tensor, source: KeyValue) -> None:
        """Write key-values of sources (B', H, S', Dh) into these slots."""
        length = source.keys.shape[2]
        if length > self.source_keys.shape[3]:
            self.resize_source(length)
        # In lower precision, norms return float32, while projections do not.
        keys, values = source.keys.to(self.source_keys), source.values.to(self.source_values)
        self.source_keys[slots, :, :, :length] = keys.transpose(2, 3)
        self.source_values[slots, :, :length] = values

    def select(self, slots: Tensor, moved: Tensor) -> None:
        """Select slots (B'), where `moved` are the new indices that change."""
        self.keys = _select(self.keys, slots, moved)
        self.values = _select(self.values, slots, moved)
        self.source_keys = _select(self.source_keys, slots, moved)
        self.source_values = _select(self.source_values, slots, moved)

    def compact(self, cells: Tensor) -> None:
        """Gather cells (B, C')."""
        self.keys, self.values = _gather(self.keys, cells), _gather(self.values, cells)

    def resize_source(self, length: int) -> None:
        """Set the capacity for source tokens."""
        more = length - self.source_keys.shape[3]
        if more:
            self.source_keys = pad(self.source_keys, (0, more))
            self.source_values = pad(self.source_values, (0, 0, 0, more))

    def set_source_length(self, length: int) -> None:
        """Set the number of source tokens that attention reads."""
        keys = self.source_keys[..., :length].transpose(2, 3)
        self.source = KeyValue(arrange_keys(keys), self.source_values[:, :, :length])


class KVCache(DecoderCache):
    """KV cache of B slots, a sentence each, with K beams each.

    Each step writes K new cells of a slot, one for each beam. Two beams, three steps, then
    `reorder` to [0, 0] since both continue beam 0, then another step:

        cell              0   1   2   3   4   5   6   7        length 8, capacity C
        token             a0  a1  b0  b1  c0  c1  d0  d1
        position          0   0   1   1   2   2   3   3
        mask of beam 0    x   .   x   .   x   .   x   .
        mask of beam 1    x   .   x   .   x   .   .   x        a0 b0 c0 are shared, not copied

    `compact` drops cells that no beam sees (a1, b1, c1). `insert` begins a new sentence in the slot
    of a finished one, whose cells it masks. `select` drops slots.
    """

    def __init__(
        self, shapes: Sequence[KVShape], num_slots: int, num_beams: int, device: torch.device
    ) -> None:
        """Create an empty cache, by the shape of each layer's key-values of a target token."""
        self.shapes = shapes
        self.layers: list[LayerKVCache] = []  # none before the first sentence
        self.lengths = torch.zeros(num_slots, dtype=torch.long, device=device)  # of each beam
        self.source_lengths = torch.zeros_like(self.lengths)
        self.source_mask: Tensor | None = None
        self.length = 0  # cells in use
        self.read_length = 0  # cells that attention reads, `length` or more; the mask hides others
        capacity = max(INITIAL_CAPACITY, 4 * num_beams)
        if num_beams == 1 and prefers_contiguous(num_slots, device):
            capacity = MIN_CAPACITY
        # (B, C) position in its target of the token in each cell.
        self.positions = torch.zeros((num_slots, capacity), dtype=torch.long, device=device)
        # (B, K, C): 0 where a beam sees a cell, -inf elsewhere. It is not kept up while every beam
        # sees all cells in use and no others are read.
        self._mask = torch.full((num_slots, num_beams, capacity), -math.inf, device=device)
        self._sees_all = num_beams == 1
        # (K, K): each beam sees its own one of the newest K cells.
        self._own = torch.full((num_beams, num_beams), -math.inf, device=device)
        self._own.fill_diagonal_(0.0)

    def advance(self) -> Tensor:
        num_beams = len(self._own)
        if self.length + num_beams > self._mask.shape[2]:
            self.compact()
        first, self.length = self.length, self.length + num_beams
        reads_capacity = self._reads_capacity()
        self.read_length = self._mask.shape[2] if reads_capacity else self.length
        for layer in self.layers:
            layer.length, layer.read_length = self.length, self.read_length
        if not self._sees_all or reads_capacity:
            self._mask[:, :, first : self.length] = self._own
        positions = self.lengths[:, None].expand(-1, num_beams)
        self.positions[:, first : self.length] = positions
        self.lengths = self.lengths + 1
        return positions

    def key_positions(self) -> Tensor:
        return self.positions[:, : self.read_length]

    def mask(self) -> Tensor | None:
        if self._sees_all and self.read_length == self.length:
            return None
        return self._mask[:, None, :, : self.read_length]

    def reorder(self, beam_indices: Tensor) -> None:
        """Let beam k of slot b continue beam beam_indices[b, k]; (B, K)."""
        indices = beam_indices[:, :, None].expand(-1, -1, self.length)
        self._mask[:, :, : self.length] = self._mask[:, :, : self.length].gather(1, indices)

    def select(self, slots: Tensor) -> None:
        """Keep these slots (B'), in this order; a slot may occur twice."""
        unmoved = torch.arange(len(slots), device=slots.device)
        moved = (slots != unmoved).nonzero()[:, 0]
        for layer in self.layers:
            layer.select(slots, moved)
        self._mask, self.positions = self._mask[slots], self.positions[slots]
        if self._sees_all:
            # More slots may read all cells, and then need the mask, which fewer do not keep up.
            self._mask[:, :, : self.length] = 0.0
        self.lengths = self.lengths[slots]
        self.source_lengths = self.source_lengths[slots]
        self._read_longest_source()

    def insert(self, slots: Tensor, sources: Sequence[KeyValue], source_mask: Tensor) -> None:
        """Begin sentences in these slots (B'), and drop the sentences there.

        `prefill` returns each layer's key-values of the sources, (B', H, S', Dh); the mask (B', S')
        says which source tokens are real.
        """
        if not self.layers:
            num_slots, _, capacity = self._mask.shape
            self.layers = [
                LayerKVCache(shape, source, num_slots, capacity)
                for shape, source in zip(self.shapes, sources, strict=True)
            ]
            self._mask, self._own = self._mask.to(sources[0].keys), self._own.to(sources[0].keys)
        for layer, source in zip(self.layers, sources, strict=True):
            layer.insert(slots, source)
        if self._sees_all and self.length:
            self._mask[:, :, : self.length] = 0.0
            self._sees_all = False
        self._mask[slots] = -math.inf
        self.lengths[slots] = 0
        self.source_lengths[slots] = source_mask.sum(dim=1)
        self._read_longest_source()

    def compact(self) -> None:
        """Drop the cells that no beam sees, and allocate new ones."""
        num_beams, length = len(self._own), self.length
        cells = torch.arange(length, device=self.lengths.device).expand(len(self.lengths), -1)
        if not self._sees_all:
            is_seen = (self._mask[:, :, :length] == 0.0).any(dim=1)  # (B, length)
            length = int(is_seen.sum(dim=1).max())
            cells = is_seen.int().argsort(dim=1, descending=True, stable=True)[:, :length]
        if self._reads_capacity():
            capacity = round_up(length + 1)
        else:
            # Every step reads all cells in use, and a move costs as much as three reads: room for
            # sqrt(6 n / K) steps minimizes the sum.
            steps = math.ceil(math.sqrt(6 * length / num_beams))
            capacity = length + num_beams * max(1, steps)
        # The content of new cells does not matter, as long as it is finite.
        padded = pad(cells, (0, capacity - length))
        for layer in self.layers:
            layer.compact(padded)
        mask, positions = self._mask, self.positions
        self._mask = mask.new_full((*mask.shape[:2], capacity), -math.inf)
        self._mask[:, :, :length] = mask.gather(2, cells[:, None].expand(-1, num_beams, -1))
        self.positions = positions.new_zeros((len(positions), capacity))
        self.positions[:, :length] = positions.gather(1, cells)
        self.length = length

    def _read_longest_source(self) -> None:
        """Let all layers read up to the longest source."""
        lengths = self.source_lengths
        shortest, longest = torch.stack(lengths.aminmax()).tolist()
        is_contiguous = prefers_contiguous(len(lengths), lengths.device)
        longest = round_up(longest) if is_contiguous else longest
        for layer in self.layers:
            if is_contiguous:
                layer.resize_source(longest)
            layer.set_source_length(longest)
        self.source_mask = None
        if shortest < longest:
            mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
            self.source_mask = additive_mask(mask, self._mask.dtype)[:, None, None]

    def _reads_capacity(self) -> bool:
        return len(self._own) == 1 and prefers_contiguous(len(self.lengths), self.lengths.device)


def concatenate(first: KeyValue, second: KeyValue) -> KeyValue:
    """Return the key-values of two sequences (N, H, S, Dh) as one sequence."""
    keys = torch.cat((first.keys, second.keys), dim=2)
    return KeyValue(keys, torch.cat((first.values, second.values), dim=2))


def _select(content: Tensor, slots: Tensor, moved: Tensor) -> Tensor:
    """Select slots (B') of (B, ...), in place if there is room: only `moved` ones are copied."""
    if len(slots) > len(content):
        return content[slots]
    content[moved] = content[slots[moved]]
    return content[: len(slots)]


def _gather(content: Tensor, cells: Tensor) -> Tensor:
    """Gather cells (B, C') of keys or values (B, H, C, Dh)."""
    batch, num_heads, capacity, head_dim = content.shape
    # As rows of a matrix they are copied whole; an index of two dimensions copies single numbers.
    heads = torch.arange(batch * num_heads, device=content.device).view(batch, num_heads, 1)
    rows = heads * capacity + cells[:, None]
    gathered = content.flatten(0, 2).index_select(0, rows.flatten())
    return gathered.view(batch, num_heads, -1, head_dim)


def round_up(length: int) -> int:
    """Return the capacity for so many tokens."""
    return max(MIN_CAPACITY, math.ceil(length / CAPACITY_STEP) * CAPACITY_STEP)
