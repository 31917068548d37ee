"""Decoder-only networks: source and target are one sequence (Radford et al. 2018)."""

from functools import partial

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import DecoderOnlyConfig
from tformer_cli.kernels.attention_mask import (
    AttentionMask,
    causal_lm_mask,
    padding_mask,
    prefix_lm_mask,
)
from tformer_cli.model.blocks.attention import KeyValue
from tformer_cli.model.blocks.embeddings import KeptTokens
from tformer_cli.model.blocks.residual import DeepNorm
from tformer_cli.model.kv_cache import DecoderCache
from tformer_cli.model.layers import EncoderLayer, Stack
from tformer_cli.model.network import Seq2Seq

SEQUENCE_MASKS = {"causal": causal_lm_mask, "bidirectional": prefix_lm_mask}


class LMStack(Stack):
    """The stack of a causal LM or, with a bidirectional source, of a prefix LM.

    Sources are padded on the right, before their targets. Positions do not count padding: the
    first target token follows the last real source token.
    """

    def __init__(self, config: DecoderOnlyConfig, vocab_size: int) -> None:
        is_causal = config.source_attention == "causal"
        constants = DeepNorm.for_stack(config.num_layers)
        super().__init__(
            config, vocab_size, EncoderLayer, config.num_layers, constants, is_causal=is_causal
        )
        self.sequence_mask = SEQUENCE_MASKS[config.source_attention]

    def forward(
        self, source: Tensor, source_mask: Tensor, target: Tensor, kept: Tensor | None = None
    ) -> Tensor:
        """Return hidden states (B, T, D) of targets (B, T), padded on the right.

        Args:
            source: (B, S) token ids.
            source_mask: (B, S) real source tokens.
            target: (B, T) token ids.
            kept: (B, S + T) tokens that keep their embedding; None for all.
        """
        ids = torch.cat((source, target), dim=1)
        target_positions = source_mask.sum(dim=1, keepdim=True) + torch.arange(
            target.shape[1], device=target.device
        )
        positions = torch.cat((_source_positions(source), target_positions), dim=1)
        real = torch.cat((source_mask, torch.ones_like(target, dtype=torch.bool)), dim=1)
        rotary, bias = self.encode_positions(positions, positions)
        sequence_mask = self.sequence_mask(source.shape[1], target.shape[1], source.device)
        attention_mask = AttentionMask(mask=padding_mask(real) & sequence_mask, bias=bias)
        states = self.embeddings(ids, positions, kept)
        for layer in self.kept_layers():
            states = self.apply_layer(layer, states, attention_mask, rotary)
        normed: Tensor = self.norm(states[:, source.shape[1] :])
        return normed

    def prefill(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Return each layer's key-values of sources (B, S) with a mask of real tokens."""
        positions = _source_positions(source)
        rotary, bias = self.encode_positions(positions, positions)
        sequence_mask = self.sequence_mask(source.shape[1], 0, source.device)
        attention_mask = AttentionMask(mask=padding_mask(source_mask) & sequence_mask, bias=bias)
        key_values: list[KeyValue] = []
        states = self.embeddings(source, positions)
        for layer in self.layers:
            states = layer(states, attention_mask, rotary, partial(_collect, key_values))
        return key_values

    def step(self, target: Tensor, cache: DecoderCache) -> Tensor:
        """Return hidden states (B, K, D) of the next token (B, K) of each beam."""
        offsets = cache.source_lengths[:, None]
        positions = offsets + cache.advance()  # (B, K)
        mask = cache.joint_mask()
        source_positions = torch.arange(cache.source_length, device=target.device)
        source_positions = source_positions.expand(offsets.shape[0], -1)
        keys = torch.cat((source_positions, offsets + cache.key_positions()), dim=1)
        rotary, bias = self.encode_positions(positions, keys)
        if bias is not None:
            mask = bias if mask is None else mask + bias
        attention_mask = AttentionMask(bias=mask)
        states = self.embeddings(target, positions)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            states = layer(states, attention_mask, rotary, layer_cache.append_to_source)
        normed: Tensor = self.norm(states)
        return normed


def _source_positions(source: Tensor) -> Tensor:
    return torch.arange(source.shape[1], device=source.device).expand(source.shape[0], -1)


def _collect(key_values: list[KeyValue], key_value: KeyValue) -> KeyValue:
    key_values.append(key_value)
    return key_value


class CausalLM(Seq2Seq):
    """A decoder-only network with a shared vocabulary: a causal LM or a prefix LM."""

    def __init__(self, config: DecoderOnlyConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.max_length = config.max_length
        self.stream = LMStack(config, vocab_size)  # the name of its weights in checkpoints
        self.output = nn.Linear(config.dim, vocab_size, bias=False)

    def stacks(self) -> list[Stack]:
        """Return the only stack."""
        return [self.stream]

    def target_hidden_states(
        self, source: Tensor, source_mask: Tensor, target: Tensor, kept: KeptTokens | None = None
    ) -> Tensor:
        """Return hidden states (B, T, D) of whole targets (teacher forcing)."""
        kept_ids = None if kept is None else torch.cat(kept, dim=1)
        states: Tensor = self.stream(source, source_mask, target, kept_ids)
        return states

    def prefill(self, source: Tensor, source_mask: Tensor) -> list[KeyValue]:
        """Return each layer's key-values of the sources."""
        return self.stream.prefill(source, source_mask)

    def decode_step_hidden(self, target: Tensor, cache: DecoderCache) -> Tensor:
        """Return hidden states (B, K, D) of the next token (B, K) of each beam."""
        return self.stream.step(target, cache)
