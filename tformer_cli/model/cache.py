"""What a decoder remembers of the rows it is writing: a value it receives, never owns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tformer_cli.model.attention import KeyValue

FIRST_SLOTS = 32


@dataclass(slots=True)
class LayerCache:
    """Keys and values of one decoder layer.

    Attributes:
        keys: (N, H, slots, Dh) of the target tokens so far; the slots past a row's length hold
            nothing. Their number doubles when it no longer suffices.
        values: likewise.
        source: keys and values of the source, (B, H, S, Dh), made once a sentence.
        used: slots that some row uses.
    """

    keys: Tensor
    values: Tensor
    source: KeyValue
    used: int = 0

    def append(self, new: KeyValue, positions: Tensor) -> KeyValue:
        """Write new keys and values (N, H, T, Dh) into the slots `positions` (N, T).

        Returns:
            All slots in use, as views: (N, H, L, Dh).
        """
        rows = torch.arange(len(positions), device=positions.device)[:, None]
        self.keys[rows, :, positions] = new.keys.transpose(1, 2)
        self.values[rows, :, positions] = new.values.transpose(1, 2)
        return KeyValue(self.keys[:, :, : self.used], self.values[:, :, : self.used])

    def reserve(self, used: int) -> None:
        """Make room for `used` slots."""
        self.used = used
        while self.keys.shape[2] < used:
            self.keys = torch.cat((self.keys, torch.zeros_like(self.keys)), dim=2)
            self.values = torch.cat((self.values, torch.zeros_like(self.values)), dim=2)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Keep these rows (N',) in this order, and of the source these sentences (B',) or all."""
        self.keys = self._selected(self.keys, rows)
        self.values = self._selected(self.values, rows)
        if sentences is not None:
            self.source = KeyValue(*(part[sentences] for part in self.source))

    def _selected(self, slots: Tensor, rows: Tensor) -> Tensor:
        chosen = slots.new_empty((len(rows), *slots.shape[1:]))
        chosen[:, :, : self.used] = slots[rows, :, : self.used]
        return chosen


@dataclass(slots=True)
class DecoderCache:
    """What the decoder remembers of N rows about B sentences.

    Attributes:
        layers: one cache for each decoder layer.
        lengths: (N,) target tokens that each row has so far.
        source_mask: (B, S) real source tokens.
    """

    layers: list[LayerCache]
    lengths: Tensor
    source_mask: Tensor
    longest: int = 0

    def advance(self, num_tokens: int) -> Tensor:
        """Make room for `num_tokens` more in every row; return their positions, (N, T)."""
        new = torch.arange(num_tokens, device=self.lengths.device)
        positions = self.lengths[:, None] + new
        self.lengths = self.lengths + num_tokens
        self.longest += num_tokens
        for layer in self.layers:
            layer.reserve(self.longest)
        return positions

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Keep these rows (N',) in this order, and of the source these sentences (B',) or all."""
        for layer in self.layers:
            layer.select(rows, sentences)
        self.lengths = self.lengths[rows]
        if sentences is not None:
            self.source_mask = self.source_mask[sentences]


def empty_cache(sources: list[KeyValue], source_mask: Tensor, beam_size: int) -> DecoderCache:
    """Return a cache with `beam_size` rows for each sentence and nothing written yet.

    Args:
        sources: for each decoder layer, keys and values of the source, (B, H, S, Dh).
        source_mask: (B, S) real source tokens.
        beam_size: rows of each sentence.
    """
    batch, num_heads, _, head_dim = sources[0].keys.shape
    slots = (batch * beam_size, num_heads, FIRST_SLOTS, head_dim)
    layers = [
        LayerCache(source.keys.new_zeros(slots), source.values.new_zeros(slots), source)
        for source in sources
    ]
    lengths = torch.zeros(batch * beam_size, dtype=torch.long, device=source_mask.device)
    return DecoderCache(layers, lengths, source_mask)
