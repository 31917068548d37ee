"""Floating-point operations of training."""

import numpy as np

from tformer_cli.config.schema.model import EncoderDecoderConfig


def product_flops(
    model: EncoderDecoderConfig, vocab_size: int, source: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Return (n,) the operations that the weights of a model take for each of some pairs.

    A matrix of n weights takes 2 n of them a token forward and 4 n backward; looking up embeddings
    takes none, the projection to the vocabulary does. Source tokens see the matrices of the encoder
    and the keys and values of cross-attention, target tokens the others of the decoder and the
    output. Norms and biases do not count.

    Args:
        model: its sizes.
        vocab_size: of the target.
        source: (n,) tokens of each source, `</s>` included, in integers or floats that are wide
            enough for the result.
        target: (n,) likewise.
    """
    square, feedforward = model.dim**2, 2 * model.dim * model.feedforward_dim
    encoder, decoder = model.num_encoder_layers, model.num_decoder_layers
    seen_by_source = encoder * (4 * square + feedforward) + decoder * 2 * square
    seen_by_target = decoder * (6 * square + feedforward) + model.dim * vocab_size
    products: np.ndarray = 6 * (seen_by_source * source + seen_by_target * target)
    return products
