"""The network: `model`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tformer_cli.config.schema.limits import Conflict, Count, PositiveFloat, Probability


@dataclass(frozen=True, kw_only=True, slots=True)
class SinusoidalPositions:
    """Fixed sine and cosine waves (Vaswani et al. 2017, section 3.5): any length."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    """Fixed sine and cosine waves; sentences may be longer than those in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedPositions:
    """A trained vector for each position."""

    kind: Literal["learned"] = "learned"
    """A trained vector for each position; longer lines are translated in pieces."""
    max_length: Count = 512
    """Number of positions, in tokens."""


PositionsConfig = SinusoidalPositions | LearnedPositions


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoderConfig:
    """The Transformer of Vaswani et al. 2017, with the choices that came after it."""

    kind: Literal["encoder_decoder"] = "encoder_decoder"
    """An encoder reads the source, a decoder writes the target."""
    dim: Count = 256
    """Width of the model."""
    num_encoder_layers: Count = 4
    """Layers of the encoder."""
    num_decoder_layers: Count = 4
    """Layers of the decoder."""
    num_heads: Count = 4
    """Attention heads; must divide `dim`."""
    feedforward_dim: Count = 1024
    """Inner width of the feed-forward blocks."""
    activation: Literal["relu", "gelu"] = "relu"
    """Activation of the feed-forward blocks."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm (mean and variance), or RMSNorm (scale only)."""
    norm_position: Literal["pre", "post"] = "pre"
    """Normalise before each block (trains more easily) or after its residual (the paper)."""
    norm_epsilon: PositiveFloat = 1e-6
    """Added to the variance in each norm."""
    positions: PositionsConfig = field(default_factory=SinusoidalPositions)
    """How the model knows the order of tokens."""
    dropout: Probability = 0.1
    """Dropout on the output of each block before its residual."""
    embedding_dropout: Probability | None = None
    """Dropout on embeddings with positions; null is `dropout`."""
    attention_dropout: Probability | None = None
    """Dropout on attention weights; null is `dropout`."""
    feedforward_dropout: Probability | None = None
    """Dropout inside the feed-forward blocks; null is `dropout`."""
    tie: Literal["none", "output", "all"] = "all"
    """Share the target embedding with the output (`output`), and with the source too (`all`)."""

    def own_dropout(self, own: float | None) -> float:
        """Return the dropout of a place that has its own, or else `dropout`."""
        return self.dropout if own is None else own

    def conflicts(self) -> Iterator[Conflict]:
        if self.dim % self.num_heads:
            yield Conflict("num_heads", f"must divide dim ({self.dim})", str(self.num_heads))
        if self.positions.kind == "sinusoidal" and self.dim % 2:
            yield Conflict("dim", "must be even with sinusoidal positions", str(self.dim))


ModelConfig = EncoderDecoderConfig
