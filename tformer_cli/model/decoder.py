"""The stack that writes the target."""

import torch
from torch import Tensor

from tformer_cli.config.schema.model import TransformerConfig
from tformer_cli.model.blocks import masks
from tformer_cli.model.blocks.attention import AttentionMask, KeyValue
from tformer_cli.model.blocks.residual import Depth
from tformer_cli.model.encoder import Memory
from tformer_cli.model.kv_cache import Cache
from tformer_cli.model.layers import DecoderLayer
from tformer_cli.model.stack import Stack


class Decoder(Stack):
    """A stack of which each token sees those before it, and the source."""

    def __init__(self, config: TransformerConfig, vocab_size: int, depth: Depth) -> None:
        super().__init__(config, vocab_size, DecoderLayer, depth, is_causal=True)

    def forward(self, target: Tensor, memory: Memory) -> Tensor:
        """Return states (B, T, D) of whole targets (B, T); position t sees 0..t.

        Rows are padded on the right, where no real position looks.
        """
        positions = torch.arange(target.shape[1], device=target.device)
        turn, bias = self.places(positions, positions)
        self_view = AttentionMask(bias=bias, is_causal=True)
        source_view = AttentionMask(mask=masks.padding(memory.mask))
        states = self.embeddings(target, positions)
        for layer, source in zip(self.layers, self.sources(memory), strict=True):
            states = self.call(layer, states, self_view, source, source_view, turn)
        normed: Tensor = self.norm(states)
        return normed

    def step(self, target: Tensor, cache: Cache) -> Tensor:
        """Return states (B, K, D) of each row's next token (B, K); the cache grows by them."""
        positions = cache.advance()  # (B, K)
        seen = cache.visible()
        turn, bias = self.places(positions, cache.column_places())
        if bias is not None:
            seen = bias if seen is None else seen + bias
        self_view, source_view = AttentionMask(bias=seen), AttentionMask(bias=cache.source_seen)
        states = self.embeddings(target, positions)
        for layer, past in zip(self.layers, cache.layers, strict=True):
            states = layer(states, self_view, past.source, source_view, turn, past.append)
        normed: Tensor = self.norm(states)
        return normed

    def sources(self, memory: Memory) -> list[KeyValue]:
        """Return the keys and values of the memory for each layer."""
        sources: list[KeyValue] = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            sources.append(layer.cross_attention.project_kv(memory.states))
        return sources
