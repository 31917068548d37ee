"""Random members of the family of Transformers: every combination that the schema allows."""

from typing import Any

from hypothesis import strategies as st

from tformer_cli.config.schema.fields import check
from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    LatentConfig,
    LearnedPositions,
    LinearScaling,
    MaskedEncoderConfig,
    NoPositions,
    NtkScaling,
    RotaryPositions,
    SinusoidalPositions,
    T5Positions,
    TransformerConfig,
    YarnScaling,
)

LONGEST = 60

scalings = st.sampled_from(
    [
        None,
        LinearScaling(factor=2.0),
        NtkScaling(factor=4.0),
        YarnScaling(factor=2.0, original_length=8),
    ]
)
positions = st.one_of(
    st.sampled_from(
        [
            SinusoidalPositions(),
            SinusoidalPositions(frequencies="tensor2tensor", offset=2),
            LearnedPositions(max_length=LONGEST),
            LearnedPositions(max_length=LONGEST, offset=2),
            AlibiPositions(),
            T5Positions(num_buckets=8, max_distance=9),
            NoPositions(),
        ]
    ),
    st.builds(RotaryPositions, base=st.sampled_from([100.0, 10000.0]), scaling=scalings),
)
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "dim": st.just(24),
    "num_heads": st.sampled_from([2, 3, 6]),
    "num_kv_heads": st.sampled_from([None, 1, 2, 3]),
    "head_width": st.sampled_from([None, None, 6]),
    "attention_scale": st.sampled_from([None, None, 1.0]),
    "embedding_scale": st.sampled_from([None, None, 1.0]),
    "latent": st.sampled_from([None, None, LatentConfig(kv_lora_rank=6, rope_head_dim=4)]),
    "sliding_window": st.sampled_from([None, None, 1, 3]),
    "qk_norm": st.booleans(),
    "feedforward_dim": st.just(17),
    "activation": st.sampled_from(["relu", "gelu", "silu", "swiglu", "geglu", "geglu_tanh"]),
    "norm": st.sampled_from(["layer", "rms"]),
    "norm_position": st.sampled_from(["pre", "post", "deep"]),
    "bias": st.booleans(),
    "positions": positions,
    "embedding_norm": st.booleans(),
    "initialization": st.sampled_from(["xavier", "normal", "t5"]),
    "dropout": st.just(0.3),
}


def is_allowed(config: TransformerConfig) -> bool:
    return next(check(config), None) is None


encoder_decoders = st.builds(
    EncoderDecoderConfig,
    **SHARED,
    num_encoder_layers=st.integers(1, 2),
    num_decoder_layers=st.integers(1, 2),
    tie_embeddings=st.sampled_from(["none", "output", "inputs", "all"]),
    output_bias=st.booleans(),
    output_scale=st.sampled_from([None, None, 0.2]),
    source_eos=st.booleans(),
).filter(is_allowed)
decoder_onlys = st.builds(
    DecoderOnlyConfig,
    **SHARED,
    num_layers=st.integers(1, 3),
    source_attention=st.sampled_from(["causal", "bidirectional"]),
    tie_embeddings=st.sampled_from(["none", "output"]),
).filter(is_allowed)
masked_encoders = st.builds(
    MaskedEncoderConfig,
    **SHARED,
    num_layers=st.integers(1, 3),
    tie_embeddings=st.sampled_from(["none", "output"]),
).filter(is_allowed)
translating = st.one_of(encoder_decoders, decoder_onlys)
