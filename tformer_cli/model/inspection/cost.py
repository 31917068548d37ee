"""What a network has to compute, from its config alone."""

from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray

from tformer_cli.config.schema.model import (
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
    TransformerConfig,
)

# A step of training to a forward pass: the backward pass has two products for each one.
TRAINING = 3

Lengths = TypeVar("Lengths", float, NDArray[Any])
"""Of one sentence, or of several."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating-point operations of products of matrices in a forward pass.

    A multiplication and the addition behind it are two. Weights take theirs for each token,
    attention for each token that looks at another. Its tables count as a whole, whatever is hidden
    in them. Embeddings are looked up, not multiplied; norms, biases and softmax do not count.

    Attributes:
        source: of the weights, for a source token.
        target: likewise, for a target token.
        source_to_source: of a source token that looks at a source token.
        source_to_target: of a source token that looks at a target token.
        target_to_source: likewise.
        target_to_target: likewise.
    """

    source: float
    target: float
    source_to_source: float
    source_to_target: float
    target_to_source: float
    target_to_target: float

    def of_source_token(self, source: Lengths, target: Lengths) -> Lengths:
        """Return what a source token takes in a sentence of these lengths."""
        return self.source + self.source_to_source * source + self.source_to_target * target

    def of_target_token(self, source: Lengths, target: Lengths) -> Lengths:
        """Return what a target token takes in a sentence of these lengths."""
        return self.target + self.target_to_source * source + self.target_to_target * target

    def forward(self, source: Lengths, target: Lengths) -> Lengths:
        """Return what a sentence takes.

        Args:
            source: S, tokens of the source; or those of several sentences, in a type that is wide
                enough for the result.
            target: T, likewise.
        """
        of_source = source * self.of_source_token(source, target)
        sentence: Lengths = of_source + target * self.of_target_token(source, target)
        return sentence

    def training(self, source: Lengths, target: Lengths) -> Lengths:
        """Return the same with the backward pass."""
        return TRAINING * self.forward(source, target)


def operations(config: ModelConfig, vocab_size: int) -> Operations:
    """Return what a network takes.

    Where there is no target (a masked encoder), target tokens are the places asked for, and take
    the projection to the vocabulary alone.

    Args:
        config: its shape.
        vocab_size: V, of the target.
    """
    token, look = _self_attention(config)
    token += _feedforward(config)
    output = _product(config.dim, vocab_size)
    if isinstance(config, EncoderDecoderConfig):
        encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
        square, key_value = _product(config.dim, config.dim), _key_value(config)
        return Operations(
            source=encoder * token + decoder * key_value,
            target=decoder * (token + 2 * square) + output,
            source_to_source=encoder * look,
            source_to_target=0,
            target_to_source=decoder * 2 * _product(config.dim),
            target_to_target=decoder * look,
        )
    layers, looks = config.num_layers * token, config.num_layers * look
    if isinstance(config, DecoderOnlyConfig):
        return Operations(layers, layers + output, looks, looks, looks, looks)
    return Operations(layers, output, looks, 0, 0, 0)


def _self_attention(config: TransformerConfig) -> tuple[int, int]:
    """Return the operations of a token, and of one that looks at another."""
    square = _product(config.dim, config.dim)
    if config.latent is None:
        # A query times a key, and a weight times a value.
        return 2 * square + _key_value(config), 2 * _product(config.dim)
    latent, rotary = config.latent.kv_lora_rank, config.latent.rope_head_dim
    query = square + _product(config.dim, config.num_heads * rotary)
    down = _product(config.dim, latent + rotary)
    # Queries over latents, and values from them.
    through = 2 * _product(config.dim, latent)
    look = _product(config.num_heads, latent + rotary) + _product(config.num_heads, latent)
    return query + down + through + square, look


def _key_value(config: TransformerConfig) -> int:
    """Return the operations that make the keys and values of a token."""
    return 2 * _product(config.dim, config.kv_heads * config.head_dim)


def _feedforward(config: TransformerConfig) -> int:
    """Return the operations of a token in the feed-forward block."""
    num_matrices = 3 if config.activation in ("swiglu", "geglu") else 2
    return num_matrices * _product(config.dim, config.feedforward_dim)


def _product(width: int, height: int = 1) -> int:
    """Return the operations of a vector's product with a matrix, or with another vector."""
    return 2 * width * height
