"""The stack that reads the source."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model import masks
from tformer_cli.model.attention import View
from tformer_cli.model.embeddings import Embeddings
from tformer_cli.model.layers import EncoderLayer, final_norm
from tformer_cli.model.positions import build_positions
from tformer_cli.model.recompute import LayerCall, kept


class Memory(NamedTuple):
    """What the encoder hands over, once a sentence.

    Attributes:
        states: (B, S, D).
        mask: (B, S) bool, real tokens.
    """

    states: Tensor
    mask: Tensor


class Encoder(nn.Module):
    """Embeddings, layers, and with pre-norm a final norm."""

    def __init__(self, config: EncoderDecoderConfig, vocab_size: int) -> None:
        super().__init__()
        positions = build_positions(config.positions, config.dim)
        dropout = config.own_dropout(config.embedding_dropout)
        self.embeddings = Embeddings(vocab_size, config.dim, positions, dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(config, positions.rotary) for _ in range(config.num_encoder_layers)
        )
        self.norm = final_norm(config)
        self.bias = positions.bias
        self.max_length = positions.max_length
        self.call: LayerCall = kept

    def forward(self, source: Tensor, source_mask: Tensor) -> Memory:
        """Read source ids (B, S), of which source_mask (B, S) are real."""
        positions = torch.arange(source.shape[1], device=source.device)
        bias = None if self.bias is None else self.bias(positions, positions)
        view = View(mask=masks.padding(source_mask), bias=bias)
        states = self.embeddings(source, positions)
        for layer in self.layers:
            states = self.call(layer, states, view, positions)
        return Memory(self.norm(states), source_mask)
