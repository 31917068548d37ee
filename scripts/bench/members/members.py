"""The members of the family that ablation.py compares: a modern base, and one change for each."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

import torch

from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LatentConfig,
    LearnedPositions,
    ModelConfig,
    NoPositions,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
)
from tformer_cli.model.build import build_network

BASE = EncoderDecoderConfig(
    dim=128,
    num_encoder_layers=4,
    num_decoder_layers=4,
    num_heads=4,
    num_kv_heads=2,
    feedforward_dim=256,
    activation="swiglu",
    norm="rms",
    norm_position="pre",
    bias=False,
    positions=RotaryPositions(),
    dropout=0.2,
    attention_dropout=0.0,
    feedforward_dropout=0.1,
)
# What both languages share; the number of weights, and with it the widths, follow from it.
VOCAB_SIZE = 8000

Change = Callable[[EncoderDecoderConfig], ModelConfig]


def changed(**keys: object) -> Change:
    """Return what sets some keys."""
    return lambda config: replace(config, **keys)


def in_one_stream(config: EncoderDecoderConfig) -> ModelConfig:
    """Return a network of as many layers without an encoder."""
    shared = {
        name: getattr(config, name)
        for name in DecoderOnlyConfig.__dataclass_fields__
        if name in EncoderDecoderConfig.__dataclass_fields__
        and name not in ("kind", "tie_embeddings")
    }
    layers = config.num_encoder_layers + config.num_decoder_layers
    return DecoderOnlyConfig(**shared, num_layers=layers, source_attention="bidirectional")


CHANGES: Mapping[str, Change] = {
    "base": changed(),
    "sinusoidal": changed(positions=SinusoidalPositions()),
    "learned": changed(positions=LearnedPositions(max_length=256)),
    "alibi": changed(positions=AlibiPositions()),
    "t5": changed(positions=T5Positions()),
    "no-positions": changed(positions=NoPositions()),
    "multi-head": changed(num_kv_heads=None),
    "multi-query": changed(num_kv_heads=1),
    "latent": changed(num_kv_heads=None, latent=LatentConfig(kv_lora_rank=48, rope_head_dim=16)),
    "window": changed(sliding_window=8),
    "qk-norm": changed(qk_norm=True),
    "relu": changed(activation="relu"),
    "layer-norm": changed(norm="layer"),
    "post-norm": changed(norm_position="post"),
    "deep-norm": changed(norm_position="deep"),
    "one-stream": in_one_stream,
    "deep-shallow": changed(num_encoder_layers=7, num_decoder_layers=1),
}


@cache
def member(name: str) -> ModelConfig:
    """Return a member with about as many weights as the base: what differs is made up in width.

    Args:
        name: a key of CHANGES.
    """
    config = CHANGES[name](BASE)
    widths = range(8, 4 * BASE.feedforward_dim)
    wanted = num_parameters(BASE)
    lowest, highest = (num_parameters(with_width(config, width)) for width in (8, 9))
    width = 8 + round((wanted - lowest) / (highest - lowest))
    assert width in widths, f"{name} has no width with as many weights as the base"
    return with_width(config, width)


def with_width(config: ModelConfig, width: int) -> ModelConfig:
    """Return a config with another inner width of its feed-forward blocks."""
    return replace(config, feedforward_dim=width)


def num_parameters(config: ModelConfig) -> int:
    """Count the weights of a network."""
    build = partial(build_network, source_size=VOCAB_SIZE, target_size=VOCAB_SIZE, seed=1)
    with torch.device("meta"):
        return build(config).num_parameters()
