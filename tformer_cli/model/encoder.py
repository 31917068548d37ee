"""The stack that reads the source."""

from typing import NamedTuple

import torch
from torch import Tensor

from tformer_cli.config.schema.model import TransformerConfig
from tformer_cli.model.blocks import masks
from tformer_cli.model.blocks.attention import AttentionMask
from tformer_cli.model.blocks.residual import Depth
from tformer_cli.model.layers import EncoderLayer
from tformer_cli.model.stack import Stack


class Memory(NamedTuple):
    """What the encoder hands over, once a sentence.

    Attributes:
        states: (B, S, D).
        mask: (B, S) bool, real tokens.
    """

    states: Tensor
    mask: Tensor


class Encoder(Stack):
    """A stack of which each token sees all others."""

    def __init__(self, config: TransformerConfig, vocab_size: int, depth: Depth) -> None:
        super().__init__(config, vocab_size, EncoderLayer, depth, is_causal=False)

    def forward(self, source: Tensor, source_mask: Tensor) -> Memory:
        """Read source ids (B, S), of which source_mask (B, S) are real."""
        positions = torch.arange(source.shape[1], device=source.device)
        turn, bias = self.places(positions, positions)
        view = AttentionMask(mask=masks.padding(source_mask), bias=bias)
        states = self.embeddings(source, positions)
        for layer in self.layers:
            states = self.call(layer, states, view, turn)
        return Memory(self.norm(states), source_mask)
