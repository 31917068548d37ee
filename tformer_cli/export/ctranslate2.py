"""A trained model as a folder that CTranslate2 loads.

CTranslate2 then translates alike: its vocabulary are our tokens, it adds `</s>` to the source by
itself, and its beam search is ours. What it is given are the tokens of a line and nothing else.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.positions import LearnedPositions
from tformer_cli.errors import UsageError
from tformer_cli.model.attention import Attention
from tformer_cli.model.decoder import Decoder
from tformer_cli.model.embeddings import Embeddings
from tformer_cli.model.encoder import Encoder
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.feedforward import FeedForward, GatedFeedForward
from tformer_cli.model.layers import DecoderLayer, EncoderLayer
from tformer_cli.run_directory import whole_directory
from tformer_cli.text.tokenizer import Tokenizer, Tokenizers
from tformer_cli.text.vocabulary import END_ID, SPECIAL_TOKENS, START_ID, UNK_ID

Quantization = Literal[
    "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"
]

# CTranslate2 has sine waves of its own, but in another order, so ours become a table. Beyond its
# last row CTranslate2 fails.
SINUSOIDAL_ROWS = 4096
# Added to the logits of tokens that no translation contains: their probability is zero.
SUPPRESSED = -1e9


def write_ctranslate2(
    model: EncoderDecoder,
    tokenizers: Tokenizers,
    config: EncoderDecoderConfig,
    folder: Path,
    quantization: Quantization | None = None,
) -> None:
    """Write a model in the format of CTranslate2: as a whole, or not at all.

    Translations are equal where CTranslate2 is asked for the same `beam_size`, `length_penalty`,
    `coverage_penalty`, `patience` and `max_decoding_length`, and for `max_input_length=0`. With a
    coverage penalty it takes `max_batch_size=1` too: CTranslate2 counts padding as source tokens.

    Args:
        model: its weights.
        tokenizers: of its vocabularies.
        config: its shape.
        folder: where to write; there must be nothing yet.
        quantization: number format of the matrices; float32 where it is None.

    Raises:
        UsageError: CTranslate2 is not installed, or the folder is there already.
        StorageError: the system does not let it be written.
    """
    if folder.exists():
        raise UsageError(str(folder), "is there already", remedy="remove it, or name another")
    spec = _specification(model, tokenizers, config)
    spec.validate()
    spec.optimize(quantization)
    with whole_directory(folder) as temporary:
        spec.save(str(temporary))


def _specification(
    model: EncoderDecoder, tokenizers: Tokenizers, config: EncoderDecoderConfig
) -> Any:
    """Return what CTranslate2 makes its files from."""
    try:
        from ctranslate2 import specs
    except ImportError:
        raise UsageError(
            "ctranslate2", "is not installed", remedy="pip install 'tformer[ctranslate2]'"
        ) from None
    shape = {
        "pre_norm": config.norm_position == "pre",
        "activation": specs.Activation[config.activation.upper()],
        "rms_norm": config.norm == "rms",
    }
    encoder = specs.TransformerEncoderSpec(config.num_encoder_layers, config.num_heads, **shape)
    decoder = specs.TransformerDecoderSpec(
        config.num_decoder_layers,
        config.num_heads,
        # Attention, and with it coverage, is the mean over all heads of the last layer.
        alignment_layer=-1,
        alignment_heads=0,
        **shape,
    )
    _set_embeddings(encoder.embeddings[0], encoder, model.encoder.embeddings, config)
    _set_embeddings(decoder.embeddings, decoder, model.decoder.embeddings, config)
    _set_layers(encoder, model.encoder)
    _set_layers(decoder, model.decoder)
    decoder.projection.weight = _copied(model.output.weight)
    decoder.projection.bias = torch.zeros(tokenizers.target.size)
    decoder.projection.bias[list(tokenizers.target.suppressed_ids)] = SUPPRESSED

    spec = specs.TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(_tokens(tokenizers.source))
    spec.register_target_vocabulary(_tokens(tokenizers.target))
    spec.config.unk_token = SPECIAL_TOKENS[UNK_ID]
    spec.config.bos_token = spec.config.decoder_start_token = SPECIAL_TOKENS[START_ID]
    spec.config.eos_token = SPECIAL_TOKENS[END_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = config.norm_epsilon
    return spec


def _set_embeddings(
    tokens: Any, stack: Any, embeddings: Embeddings, config: EncoderDecoderConfig
) -> None:
    tokens.weight = _copied(embeddings.tokens.weight)
    stack.scale_embeddings = embeddings.scale
    assert embeddings.positions is not None
    positions = config.positions
    rows = positions.max_length if isinstance(positions, LearnedPositions) else SINUSOIDAL_ROWS
    device = embeddings.tokens.weight.device
    table = embeddings.positions(torch.arange(rows, device=device))
    stack.position_encodings.encodings = _copied(table)


def _set_layers(spec: Any, stack: Encoder | Decoder) -> None:
    for part, layer in zip(spec.layer, stack.layers, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        attention = layer.self_attention
        assert isinstance(attention, Attention)
        query, key, value = attention.query, attention.key, attention.value
        _set_attention(part.self_attention, attention, [query, key, value])
        _set_norm(part.self_attention.layer_norm, layer.self_attention_norm)
        if isinstance(layer, DecoderLayer):
            attention = layer.cross_attention
            query, key, value = attention.query, attention.key, attention.value
            _set_attention(part.attention, attention, [query], [key, value])
            _set_norm(part.attention.layer_norm, layer.cross_attention_norm)
        _set_feedforward(part.ffn, layer.feedforward)
        _set_norm(part.ffn.layer_norm, layer.feedforward_norm)
    if hasattr(spec, "layer_norm"):
        _set_norm(spec.layer_norm, stack.norm)


def _set_attention(spec: Any, attention: Attention, *projections: list[nn.Linear]) -> None:
    """Take over attention whose projections of the same states are one."""
    for part, joined in zip(spec.linear, (*projections, [attention.output]), strict=True):
        _set_linear(part, *joined)


def _set_feedforward(spec: Any, feedforward: FeedForward | GatedFeedForward) -> None:
    assert isinstance(feedforward, FeedForward)
    _set_linear(spec.linear_0, feedforward.inner)
    _set_linear(spec.linear_1, feedforward.outer)


def _set_linear(spec: Any, *layers: nn.Linear) -> None:
    """Take over layers as one that writes their outputs one behind another."""
    spec.weight = _copied(torch.cat([layer.weight for layer in layers]))
    spec.bias = _copied(torch.cat([layer.bias for layer in layers]))


def _set_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = _copied(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _copied(norm.bias)


def _tokens(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.tokens(range(tokenizer.size))


def _copied(weight: Tensor) -> Tensor:
    # CTranslate2 scales what it quantises in place.
    return weight.detach().to("cpu", torch.float32, copy=True)
