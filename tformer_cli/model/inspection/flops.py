"""FLOPs of a network, from its config alone."""

from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray

from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
    TransformerConfig,
)

# A training step over a forward pass: the backward pass has two products for each one.
TRAINING_FACTOR = 3

Lengths = TypeVar("Lengths", float, NDArray[Any])
"""Length of one sentence, or of several in a type that is wide enough for the result."""


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of the matrix products of a forward pass; a multiplication and an addition are two.

    Attention counts in full, whatever is masked. Embeddings, norms, biases and softmax do not
    count.

    Attributes:
        source: for a source token.
        target: for a target token.
        source_to_source: for a source token that attends to a source token.
        source_to_target: for a source token that attends to a target token.
        target_to_source: for a target token that attends to a source token.
        target_to_target: for a target token that attends to a target token.
    """

    source: float
    target: float
    source_to_source: float
    source_to_target: float
    target_to_source: float
    target_to_target: float

    def of_source_token(self, source: Lengths, target: Lengths) -> Lengths:
        """Return the FLOPs of a source token in a sentence of these lengths."""
        return self.source + self.source_to_source * source + self.source_to_target * target

    def of_target_token(self, source: Lengths, target: Lengths) -> Lengths:
        """Return the FLOPs of a target token in a sentence of these lengths."""
        return self.target + self.target_to_source * source + self.target_to_target * target

    def forward(self, source: Lengths, target: Lengths) -> Lengths:
        """Return the FLOPs of a forward pass over a sentence of these lengths."""
        of_source = source * self.of_source_token(source, target)
        sentence: Lengths = of_source + target * self.of_target_token(source, target)
        return sentence

    def training(self, source: Lengths, target: Lengths) -> Lengths:
        """Return the FLOPs of a forward and a backward pass."""
        return TRAINING_FACTOR * self.forward(source, target)


def count_flops(config: ModelConfig, vocab_size: int) -> Flops:
    """Return the FLOPs of a network with target vocabulary size V.

    Target tokens of a masked encoder are the positions to predict: they need the output projection
    alone.
    """
    token, pair = _self_attention(config)
    token += _feedforward(config)
    output = _product(config.dim, vocab_size)
    if isinstance(config, EncoderDecoderConfig):
        encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
        square, key_value = _square(config), _key_value(config)
        return Flops(
            source=encoder * token + decoder * key_value,
            target=decoder * (token + 2 * square) + output,
            source_to_source=encoder * pair,
            source_to_target=0,
            target_to_source=decoder * 2 * _product(config.num_heads * config.head_dim),
            target_to_target=decoder * pair,
        )
    tokens, pairs = config.num_layers * token, config.num_layers * pair
    if isinstance(config, DecoderOnlyConfig):
        return Flops(tokens, tokens + output, pairs, pairs, pairs, pairs)
    return Flops(tokens, output, pairs, 0, 0, 0)


def _self_attention(config: TransformerConfig) -> tuple[int, int]:
    """Return the FLOPs of a token's projections, and of a query-key pair."""
    square = _square(config)
    if config.latent is None:
        # A query times a key, and a weight times a value.
        pair = 2 * _product(config.num_heads * config.head_dim)
        return 2 * square + _key_value(config), pair
    rank, rope_dim = config.latent.kv_lora_rank, config.latent.rope_head_dim
    query = square + _product(config.dim, config.num_heads * rope_dim)
    down = _product(config.dim, rank + rope_dim)
    # Queries over latents, and values from latents.
    per_head = 2 * _product(config.dim, rank)
    pair = _product(config.num_heads, rank + rope_dim) + _product(config.num_heads, rank)
    return query + down + per_head + square, pair


def _square(config: TransformerConfig) -> int:
    """Return the FLOPs of the projection of queries, or of the output."""
    return _product(config.dim, config.num_heads * config.head_dim)


def _key_value(config: TransformerConfig) -> int:
    return 2 * _product(config.dim, config.kv_heads * config.head_dim)


def _feedforward(config: TransformerConfig) -> int:
    num_matrices = 3 if config.is_gated else 2
    return num_matrices * _product(config.dim, config.feedforward_dim)


def _product(width: int, height: int = 1) -> int:
    """Return the FLOPs of a vector times a matrix, or times another vector."""
    return 2 * width * height
