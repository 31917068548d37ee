"""The stack that writes the target."""

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model import masks
from tformer_cli.model.attention import KeyValue, View
from tformer_cli.model.cache import DecoderCache, new_cache
from tformer_cli.model.embeddings import Embeddings
from tformer_cli.model.encoder import Memory
from tformer_cli.model.layers import DecoderLayer, final_norm
from tformer_cli.model.positions import build_positions
from tformer_cli.model.recompute import LayerCall, kept


class Decoder(nn.Module):
    """Embeddings, layers, and with pre-norm a final norm."""

    def __init__(self, config: EncoderDecoderConfig, vocab_size: int) -> None:
        super().__init__()
        positions = build_positions(config.positions, config.dim)
        dropout = config.own_dropout(config.embedding_dropout)
        self.embeddings = Embeddings(vocab_size, config.dim, positions, dropout)
        self.layers = nn.ModuleList(
            DecoderLayer(config, positions.rotary) for _ in range(config.num_decoder_layers)
        )
        self.norm = final_norm(config)
        self.bias = positions.bias
        self.max_length = positions.max_length
        self.call: LayerCall = kept

    def forward(self, target: Tensor, memory: Memory) -> Tensor:
        """Return states (B, T, D) of whole targets (B, T); position t sees 0..t.

        Rows are padded on the right, where no real position looks.
        """
        positions = torch.arange(target.shape[1], device=target.device)
        bias = None if self.bias is None else self.bias(positions, positions)
        self_view = View(bias=bias, causal=True)
        source_view = View(mask=masks.padding(memory.mask))
        states = self.embeddings(target, positions)
        for layer, source in zip(self.layers, self._sources(memory), strict=True):
            states = self.call(layer, states, self_view, source, source_view, positions)
        normed: Tensor = self.norm(states)
        return normed

    def start(self, num_places: int, num_rows: int = 1) -> DecoderCache:
        """Return a cache for so many sentences, with `num_rows` rows of each."""
        return new_cache(num_places, num_rows, self.embeddings.tokens.weight.device)

    def admit(self, memory: Memory, places: Tensor, cache: DecoderCache) -> None:
        """Begin the sentences of the memory in these places (B',) of a cache."""
        cache.admit(places, self._sources(memory), memory.mask)

    def step(self, target: Tensor, cache: DecoderCache) -> Tensor:
        """Return states (B, K, D) of each row's next token (B, K); the cache grows by them."""
        positions = cache.advance()  # (B, K)
        seen = cache.visible()
        if self.bias is not None:
            bias = self.bias(positions, cache.positions[:, : cache.used])
            seen = bias if seen is None else seen + bias
        self_view, source_view = View(bias=seen), View(bias=cache.source_seen)
        states = self.embeddings(target, positions)
        for layer, remembered in zip(self.layers, cache.layers, strict=True):
            states = layer(states, self_view, remembered.source, source_view, positions, remembered)
        normed: Tensor = self.norm(states)
        return normed

    def _sources(self, memory: Memory) -> list[KeyValue]:
        sources: list[KeyValue] = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            sources.append(layer.cross_attention.key_value(memory.states))
        return sources
