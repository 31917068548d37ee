"""The network: `model`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from tformer_cli.config.schema.limits import (
    MOST,
    Bounds,
    Conflict,
    Count,
    Former,
    PositiveFloat,
    Probability,
)
from tformer_cli.config.schema.positions import (
    LearnedPositions,
    PositionsConfig,
    SinusoidalPositions,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-AI 2024, section 2.1)."""

    kv_lora_rank: Annotated[Count, Former("dim")]
    """Width of the latent that the keys and values of all heads are made from."""
    rope_head_dim: Annotated[int, Bounds(minimum=2, maximum=MOST), Former("rotary_dim")]
    """Width of the key that all heads share, which rotary positions turn; even."""

    def conflicts(self) -> Iterator[Conflict]:
        if self.rope_head_dim % 2:
            yield Conflict("rope_head_dim", "must be even", str(self.rope_head_dim))


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """What all Transformers have."""

    dim: Count = 256
    """Width of the model."""
    num_heads: Count = 4
    """Attention heads; must divide `dim`."""
    num_kv_heads: Count | None = None
    """Heads that keys and values have, each shared by some of the others; null is `num_heads`."""
    latent: LatentConfig | None = None
    """Make keys and values of self-attention from a narrow latent, all that is cached."""
    sliding_window: Annotated[Count | None, Former("window")] = None
    """Tokens that self-attention sees, on either side and its own; null is all."""
    qk_norm: bool = False
    """Normalise (RMSNorm) the queries and keys of self-attention."""
    feedforward_dim: Count = 1024
    """Inner width of the feed-forward blocks; a gated one has three matrices in place of two, so
    two thirds of the width are as many weights."""
    activation: Literal["relu", "gelu", "silu", "swiglu", "geglu"] = "relu"
    """Activation of the feed-forward blocks; swiglu and geglu are gated."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm (mean and variance), or RMSNorm (scale only)."""
    norm_position: Literal["pre", "post", "deep"] = "pre"
    """Normalise before each block (trains more easily), after its residual (the paper), or after a
    residual that weighs more (DeepNorm, for a hundred layers and more)."""
    norm_epsilon: PositiveFloat = 1e-6
    """Added to the variance in each norm."""
    bias: bool = True
    """Linear maps, and LayerNorm, add a trained vector."""
    positions: PositionsConfig = field(default_factory=SinusoidalPositions)
    """How the model knows the order of tokens."""
    initialization: Literal["xavier", "normal", "t5"] = "xavier"
    """First weights: Xavier; normal with 0.02, less for deep stacks (GPT-2); or T5's."""
    dropout: Probability = 0.1
    """Dropout on the output of each block before its residual."""
    embedding_dropout: Probability | None = None
    """Dropout on embeddings with positions; null is `dropout`."""
    attention_dropout: Probability | None = None
    """Dropout on attention weights; null is `dropout`."""
    feedforward_dropout: Probability | None = None
    """Dropout inside the feed-forward blocks; null is `dropout`."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Heads that keys and values have."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def max_length(self) -> int | None:
        """Longest sentence in tokens that learned positions allow, or None for any length."""
        positions = self.positions
        return positions.max_length if isinstance(positions, LearnedPositions) else None

    def own_dropout(self, own: float | None) -> float:
        """Return the dropout of a place that has its own, or else `dropout`."""
        return self.dropout if own is None else own

    def conflicts(self) -> Iterator[Conflict]:
        if self.dim % self.num_heads:
            yield Conflict("num_heads", f"must divide dim ({self.dim})", str(self.num_heads))
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            yield Conflict(
                "num_kv_heads", f"must divide num_heads ({self.num_heads})", str(self.num_kv_heads)
            )
        if self.positions.kind == "sinusoidal" and self.dim % 2:
            yield Conflict("dim", "must be even with sinusoidal positions", str(self.dim))
        if self.latent is not None:
            yield from self._conflicts_of_latent()
        elif self.positions.kind == "rotary" and self.head_dim % 2:
            what = f"must leave rotary positions an even dim / num_heads (it is {self.head_dim})"
            yield Conflict("num_heads", what, str(self.num_heads))

    def _conflicts_of_latent(self) -> Iterator[Conflict]:
        if self.positions.kind != "rotary":
            yield Conflict(
                "latent",
                "needs rotary positions, for its shared key is what they turn",
                f"positions of kind {self.positions.kind}",
                "write positions: {kind: rotary}",
            )
        if self.qk_norm:
            yield Conflict("qk_norm", "must be false with latent, which has a norm of its own")
        if self.num_kv_heads is not None:
            yield Conflict(
                "num_kv_heads",
                "must be null with latent, which all heads share",
                str(self.num_kv_heads),
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoderConfig(TransformerConfig):
    """The Transformer of Vaswani et al. 2017, with the choices that came after it."""

    kind: Literal["encoder_decoder"] = "encoder_decoder"
    """An encoder reads the source, a decoder writes the target."""
    num_encoder_layers: Count = 4
    """Layers of the encoder."""
    num_decoder_layers: Count = 4
    """Layers of the decoder."""
    tie_embeddings: Annotated[Literal["none", "output", "all"], Former("tie")] = "all"
    """Share the target embedding with the output (`output`), and with the source too (`all`)."""
    output_bias: bool = False
    """Add a trained number to the logit of each token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderOnlyConfig(TransformerConfig):
    """One stack that reads the source and goes on with the target (Radford et al. 2018)."""

    kind: Literal["decoder_only"] = "decoder_only"
    """One stack reads the source, then `<sep>`, then writes the target."""
    num_layers: Count = 8
    """Layers of the only stack."""
    source_attention: Literal["causal", "bidirectional"] = "causal"
    """Source tokens see those before them, or all of the source."""
    tie_embeddings: Annotated[Literal["none", "output"], Former("tie")] = "output"
    """Share the embedding with the output (`output`)."""

    @property
    def max_length(self) -> int | None:
        """The same, where source and target have half of the positions each."""
        positions = self.positions
        return positions.max_length // 2 if isinstance(positions, LearnedPositions) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedEncoderConfig(TransformerConfig):
    """An encoder that learns from text alone (Devlin et al. 2019)."""

    kind: Literal["masked_encoder"] = "masked_encoder"
    """An encoder says what stood behind masks, for an encoder_decoder to begin with."""
    num_layers: Count = 4
    """Layers of the only stack."""
    mask_prob: Annotated[float, Bounds(above=0, below=1), Former("mask_share")] = 0.15
    """Share of the tokens that the model is asked for; of ten, eight are masked, one is another
    token and one stays."""
    tie_embeddings: Annotated[Literal["none", "output"], Former("tie")] = "output"
    """Share the embedding with the output (`output`)."""


ModelConfig = EncoderDecoderConfig | DecoderOnlyConfig | MaskedEncoderConfig
