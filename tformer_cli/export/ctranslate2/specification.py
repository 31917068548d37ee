"""What CTranslate2 makes its files from: each weight of ours in the place that it has there."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    LinearScaling,
    ModelConfig,
    NoPositions,
    NtkScaling,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
    YarnScaling,
)
from tformer_cli.export.extra import package
from tformer_cli.model.blocks.attention import Attention
from tformer_cli.model.blocks.bias import DistanceBias
from tformer_cli.model.blocks.feedforward import FeedForward, GatedFeedForward
from tformer_cli.model.blocks.rotary import scaled_frequencies
from tformer_cli.model.decoder import Decoder
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.model.layers import DecoderLayer, EncoderLayer
from tformer_cli.model.stack import Stack

# CTranslate2 has sine waves of its own, but in another order, so ours become a table. Beyond its
# last row CTranslate2 fails.
SINUSOIDAL_ROWS = 4096
# Of the whole numbers that int8 rounds weights to.
MAX_INT8_WEIGHT = 64
# What a feed-forward block applies to its inner states, or to its gate.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "geglu": "GELU",
}


def specification(model: EncoderDecoder, config: EncoderDecoderConfig) -> Any:
    """Return a specification with the weights of a model, all but the bias of its output.

    Args:
        model: its weights.
        config: its shape, of which CTranslate2 knows every part.

    Raises:
        UsageError: CTranslate2 is not installed.
    """
    specs = package("ctranslate2", "ctranslate2").specs
    shape = {
        "pre_norm": config.norm_position == "pre",
        "activation": specs.Activation[ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation in ("swiglu", "geglu"),
        "rms_norm": config.norm == "rms",
        "num_heads_kv": None if config.kv_heads == config.num_heads else config.kv_heads,
        "qk_norm": config.qk_norm,
        "relative_attention_bias": has_distance_bias(config),
        **_rotary(config, specs),
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
    _set_stack(encoder, encoder.embeddings[0], model.encoder, config)
    _set_stack(decoder, decoder.embeddings, model.decoder, config)
    decoder.projection.weight = _copied(model.output.weight)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    return spec


def quantize_weights(spec: Any) -> None:
    """Round each matrix of a specification to int8, with a scale for each row.

    CTranslate2 would use the whole range to 127. Processors without VNNI add two products of an
    unsigned and a signed byte in 16 bits, which then saturate (oneDNN, "Nuances of int8
    computations"). With weights up to 64 no pair exceeds 2 * 255 * 64 < 2**15, so all processors
    compute the same numbers.
    """
    visit = package("ctranslate2", "ctranslate2").specs.model_spec.visit_spec

    def quantize(layer: Any, name: str, value: Any) -> None:
        key = name.rpartition("/")[2]
        if isinstance(value, Tensor) and hasattr(layer, f"{key}_scale"):
            highest = value.abs().amax(dim=1)
            scales = MAX_INT8_WEIGHT / torch.where(highest > 0, highest, 1.0)
            setattr(layer, key, (value * scales[:, None]).round_().to(torch.int8))
            setattr(layer, f"{key}_scale", scales)

    visit(spec, quantize)


def num_positions(config: ModelConfig) -> int | None:
    """Return how many tokens an exported model has positions for; None is any number."""
    positions = config.positions
    if isinstance(positions, SinusoidalPositions):
        return SINUSOIDAL_ROWS
    return positions.max_length if isinstance(positions, LearnedPositions) else None


def has_distance_bias(config: EncoderDecoderConfig) -> bool:
    """Return whether CTranslate2 is given a table of distances.

    A network without positions gets one of zeros, or else CTranslate2 would add sine waves.
    """
    positions = config.positions
    return config.sliding_window is not None or isinstance(positions, T5Positions | NoPositions)


def _rotary(config: EncoderDecoderConfig, specs: Any) -> dict[str, Any]:
    """Return what a specification says of rotary positions, where the network has them."""
    positions = config.positions
    if not isinstance(positions, RotaryPositions):
        return {}
    scaling, base, kinds = positions.scaling, positions.base, specs.attention_spec.RotaryScalingType
    said: dict[str, Any] = {"rotary_dim": 0, "rotary_interleave": False}
    if isinstance(scaling, LinearScaling):
        said |= {"rotary_scaling_type": kinds.Linear, "rotary_scaling_factor": scaling.factor}
    elif isinstance(scaling, NtkScaling) and config.head_dim > 2:
        base *= scaling.factor ** (config.head_dim / (config.head_dim - 2))
    elif isinstance(scaling, YarnScaling):
        said |= {"rotary_scaling_type": kinds.Su}
    return said | {"rotary_base": base}


def _set_stack(spec: Any, tokens: Any, stack: Stack, config: EncoderDecoderConfig) -> None:
    """Take over the embeddings, the layers and the final norm of a stack.

    CTranslate2 has no residual that weighs alpha times as much. So its states are alpha times ours:
    what enters a stack and what its norms say is multiplied, what its blocks read is divided, and
    what leaves it is as it was.
    """
    alpha = stack.depth.deep_norm.alpha if config.norm_position == "deep" else 1.0
    tokens.weight = _copied(stack.embeddings.tokens.weight)
    spec.scale_embeddings = stack.embeddings.scale * alpha
    _set_positions(spec, stack, config, alpha)
    layers = stack.each_layer()
    for part, layer in zip(spec.layer, layers, strict=True):
        _set_layer(part, layer, alpha)
    if config.norm_position == "pre":
        _set_norm(spec.layer_norm, stack.norm)
    else:
        _set_norm(spec.layer[-1].ffn.layer_norm, layers[-1].feedforward_norm)


def _set_positions(spec: Any, stack: Stack, config: EncoderDecoderConfig, alpha: float) -> None:
    """Take over how a stack knows the order of its tokens."""
    positions, rows = config.positions, num_positions(config)
    if rows is not None:
        assert stack.embeddings.positions is not None
        table = stack.embeddings.positions(torch.arange(rows, device=_device(stack)))
        spec.position_encodings.encodings = _copied(table * alpha)
    elif hasattr(spec, "position_encodings"):
        del spec.position_encodings
    if has_distance_bias(config):
        table, max_distance = _distances(stack, config)
        for part in spec.layer:
            part.self_attention.relative_attention_bias = table
            part.self_attention.relative_attention_max_distance = np.int32(max_distance)
    if isinstance(positions, RotaryPositions) and isinstance(positions.scaling, YarnScaling):
        for part in spec.layer:
            _set_waves(part.self_attention, positions, config.head_dim)


def _distances(stack: Stack, config: EncoderDecoderConfig) -> tuple[Tensor, int]:
    """Return what is added for each class of distances (classes, H), and the largest distance.

    The classes are T5's: those of the nearer half of a side are of one distance each. There are so
    many that distances in the farther half are all alike, so it does not matter how CTranslate2
    rounds the borders between those.
    """
    positions = config.positions
    longest = positions.max_distance if isinstance(positions, T5Positions) else 1
    reach = max(longest, config.sliding_window or 1)
    lengths = torch.arange(2 * reach, device=_device(stack)).clamp(max=reach)
    sides = [-lengths] if isinstance(stack, Decoder) else [-lengths, lengths]
    tables = [_bias(stack.bias, side, config.num_heads) for side in sides]
    return _copied(torch.cat(tables, dim=-1).T.contiguous()), reach + 1


def _bias(bias: DistanceBias | None, distances: Tensor, num_heads: int) -> Tensor:
    """Return what is added to each head for distances (L,): (H, L)."""
    if bias is None:
        return torch.zeros(num_heads, len(distances))
    return bias.of_distance(distances[None, None])[:, 0].expand(num_heads, -1)


def _set_waves(spec: Any, positions: RotaryPositions, head_dim: int) -> None:
    """Take over frequencies that are no function of a base, and how much attention is sharpened."""
    plain, _ = scaled_frequencies(head_dim, replace(positions, scaling=None))
    scaled, sharpness = scaled_frequencies(head_dim, positions)
    # One would be for sentences up to a length, the other for longer ones.
    spec.rotary_scaling_long_factor = spec.rotary_scaling_short_factor = plain / scaled
    spec.queries_scale = sharpness**2 / math.sqrt(head_dim)


def _set_layer(spec: Any, layer: EncoderLayer | DecoderLayer, alpha: float) -> None:
    """Take over a layer whose states are `alpha` times ours."""
    attention = layer.self_attention
    assert isinstance(attention, Attention)
    part = spec.self_attention
    _set_linear(part.linear[0], attention.query, attention.key, attention.value, divisor=alpha)
    _set_linear(part.linear[1], attention.output)
    if hasattr(part, "q_norm"):
        _set_norm(part.q_norm, attention.query_norm)
        _set_norm(part.k_norm, attention.key_norm)
    _set_norm(part.layer_norm, layer.self_attention_norm, alpha)
    if isinstance(layer, DecoderLayer):
        _set_cross_attention(spec.attention, layer.cross_attention, alpha)
        _set_norm(spec.attention.layer_norm, layer.cross_attention_norm, alpha)
    _set_feedforward(spec.ffn, layer.feedforward, alpha)
    _set_norm(spec.ffn.layer_norm, layer.feedforward_norm, alpha)


def _set_cross_attention(spec: Any, attention: Attention, alpha: float) -> None:
    """Take over attention to the source, whose states are ours."""
    _set_linear(spec.linear[0], attention.query, divisor=alpha)
    _set_linear(spec.linear[1], attention.key, attention.value)
    _set_linear(spec.linear[2], attention.output)
    if hasattr(spec, "q_norm"):
        # CTranslate2 would normalise all heads together, and ours normalises none here.
        del spec.q_norm, spec.k_norm


def _set_feedforward(spec: Any, feedforward: FeedForward | GatedFeedForward, alpha: float) -> None:
    if isinstance(feedforward, GatedFeedForward):
        _set_linear(spec.linear_0, feedforward.gate, divisor=alpha)
        _set_linear(spec.linear_0_noact, feedforward.inner, divisor=alpha)
    else:
        _set_linear(spec.linear_0, feedforward.inner, divisor=alpha)
    _set_linear(spec.linear_1, feedforward.outer)


def _set_linear(spec: Any, *layers: nn.Linear, divisor: float = 1.0) -> None:
    """Take over layers as one that writes their outputs one behind another.

    Args:
        spec: the place.
        layers: of the same input.
        divisor: how many times larger that input is there.
    """
    spec.weight = _copied(torch.cat([layer.weight for layer in layers]) / divisor)
    if layers[0].bias is not None:
        spec.bias = _copied(torch.cat([layer.bias for layer in layers]))


def _set_norm(spec: Any, norm: nn.Module, factor: float = 1.0) -> None:
    """Take over a norm, whose output is to be `factor` times as large."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = _copied(norm.weight * factor)
    if isinstance(norm, nn.LayerNorm):
        # Without a vector to add, CTranslate2 would take it for RMSNorm.
        bias: Tensor | None = norm.bias
        added = torch.zeros_like(norm.weight) if bias is None else bias
        spec.beta = _copied(added * factor)


def _device(stack: Stack) -> torch.device:
    return stack.embeddings.tokens.weight.device


def _copied(weight: Tensor) -> Tensor:
    # CTranslate2 scales what it quantises in place.
    return weight.detach().to("cpu", torch.float32, copy=True)
