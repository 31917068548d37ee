"""The encoder, and the encoder-only network of masked language modeling."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import MaskedEncoderConfig, TransformerConfig
from tformer_cli.kernels.attention_mask import AttentionMask, padding_mask
from tformer_cli.model.blocks.embeddings import KeptTokens
from tformer_cli.model.blocks.residual import DeepNorm
from tformer_cli.model.layers import EncoderLayer, Stack
from tformer_cli.model.network import Network


class Memory(NamedTuple):
    """Output of the encoder.

    Attributes:
        states: (B, S, D) hidden states.
        mask: (B, S) bool, real tokens.
    """

    states: Tensor
    mask: Tensor


class Encoder(Stack):
    """A stack with bidirectional self-attention."""

    def __init__(
        self, config: TransformerConfig, vocab_size: int, num_layers: int, deep_norm: DeepNorm
    ) -> None:
        super().__init__(config, vocab_size, EncoderLayer, num_layers, deep_norm, is_causal=False)

    def forward(self, source: Tensor, source_mask: Tensor, kept: Tensor | None = None) -> Memory:
        """Encode source ids (B, S) with a mask (B, S) of real tokens, and one of kept tokens."""
        positions = torch.arange(source.shape[1], device=source.device)
        rotary, bias = self.encode_positions(positions, positions)
        attention_mask = AttentionMask(mask=padding_mask(source_mask), bias=bias)
        states = self.embeddings(source, positions, kept)
        for layer in self.kept_layers():
            states = self.apply_layer(layer, states, attention_mask, rotary)
        return Memory(self.norm(states), source_mask)


class MaskedEncoder(Network):
    """An encoder trained as a masked language model (Devlin et al. 2019, section 3.1)."""

    def __init__(self, config: MaskedEncoderConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.max_length = config.max_length
        constants = DeepNorm.for_stack(config.num_layers)
        self.encoder = Encoder(config, vocab_size, config.num_layers, constants)
        self.output = nn.Linear(config.dim, vocab_size, bias=False)

    def hidden_states(
        self,
        source: Tensor,
        source_mask: Tensor,
        target: Tensor,
        target_positions: Tensor,
        kept: KeptTokens | None = None,
    ) -> Tensor:
        """Return the hidden states (N, D) of the positions to predict, batch row after batch row.

        Args:
            source: (B, S) token ids, some of them masked.
            source_mask: (B, S) real tokens.
            target: is ignored; source and target have the same positions.
            target_positions: (N,) indices of the positions to predict in the flattened source.
            kept: tokens that keep their embedding; None for all.
        """
        kept_source = None if kept is None else kept.source
        states: Tensor = self.encoder(source, source_mask, kept_source).states
        return states.flatten(0, 1).index_select(0, target_positions)

    def stacks(self) -> list[Stack]:
        """Return the encoder."""
        return [self.encoder]
