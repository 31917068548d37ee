"""The stack that reads a source, and goes on with its target in the same stream."""

from functools import partial

import torch
from torch import Tensor

from tformer_cli.config.schema.model import DecoderOnlyConfig
from tformer_cli.model.blocks import masks
from tformer_cli.model.blocks.attention import AttentionMask, KeyValue
from tformer_cli.model.blocks.residual import alone
from tformer_cli.model.kv_cache import Cache
from tformer_cli.model.layers import EncoderLayer
from tformer_cli.model.stack import Stack

# Which tokens of a stream see which, (S + T, S + T), by the lengths of its two parts.
REACHES = {"causal": masks.causal_lm_mask, "bidirectional": masks.prefix_lm_mask}


class Stream(Stack):
    """A stack of which each token sees those before it, the source among them.

    A source is padded on the right, and its target stands behind the padding; but places are
    counted without it, so the first target token has the place behind the last source token.
    """

    def __init__(self, config: DecoderOnlyConfig, vocab_size: int) -> None:
        is_causal = config.source_attention == "causal"
        depth = alone(config.num_layers)
        super().__init__(config, vocab_size, EncoderLayer, depth, is_causal=is_causal)
        self.reach = REACHES[config.source_attention]

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Return states (B, T, D) of targets (B, T); position t sees the source and 0..t.

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
            target: (B, T) token ids, padded on the right.
        """
        ids = torch.cat((source, target), dim=1)
        own = source_mask.sum(dim=1, keepdim=True) + torch.arange(
            target.shape[1], device=target.device
        )
        positions = torch.cat((self._source_positions(source), own), dim=1)
        seen = torch.cat((source_mask, torch.ones_like(target, dtype=torch.bool)), dim=1)
        turn, bias = self.places(positions, positions)
        reach = self.reach(source.shape[1], target.shape[1], source.device)
        view = AttentionMask(mask=masks.padding(seen) & reach, bias=bias)
        states = self.embeddings(ids, positions)
        for layer in self.layers:
            states = self.call(layer, states, view, turn)
        normed: Tensor = self.norm(states[:, source.shape[1] :])
        return normed

    def prefill(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Return the keys and values of sources (B, S), of which source_mask are real."""
        positions = self._source_positions(source)
        turn, bias = self.places(positions, positions)
        reach = self.reach(source.shape[1], 0, source.device)
        view = AttentionMask(mask=masks.padding(source_mask) & reach, bias=bias)
        sources: list[KeyValue] = []
        states = self.embeddings(source, positions)
        for layer in self.layers:
            states = layer(states, view, turn, partial(_noted, sources))
        return sources

    def step(self, target: Tensor, cache: Cache) -> Tensor:
        """Return states (B, K, D) of each row's next token (B, K); the cache grows by them."""
        offsets = cache.source_lengths[:, None]
        positions = offsets + cache.advance()  # (B, K)
        seen = cache.visible_stream()
        source_positions = torch.arange(cache.longest_source, device=target.device)
        keys = torch.cat(
            (source_positions.expand(offsets.shape[0], -1), offsets + cache.column_places()), dim=1
        )
        turn, bias = self.places(positions, keys)
        if bias is not None:
            seen = bias if seen is None else seen + bias
        view = AttentionMask(bias=seen)
        states = self.embeddings(target, positions)
        for layer, past in zip(self.layers, cache.layers, strict=True):
            states = layer(states, view, turn, past.append_to_source)
        normed: Tensor = self.norm(states)
        return normed

    def _source_positions(self, source: Tensor) -> Tensor:
        return torch.arange(source.shape[1], device=source.device).expand(source.shape[0], -1)


def _noted(notes: list[KeyValue], key_value: KeyValue) -> KeyValue:
    notes.append(key_value)
    return key_value
