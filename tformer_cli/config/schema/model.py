"""The network: `model`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from tformer_cli.config.schema.fields import (
    LEFT_OUT_IF_NULL,
    MAX_COUNT,
    Bounds,
    Count,
    CountOrZero,
    Former,
    PositiveFloat,
    Probability,
)
from tformer_cli.errors import Problem

ScalingFactor = Annotated[float, Bounds(ge=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SinusoidalPositions:
    """Sinusoidal position encodings (Vaswani et al. 2017, section 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    """Sinusoidal encodings; sentences may be longer than in training."""
    frequencies: Literal["paper", "tensor2tensor"] = "paper"
    """`paper`: 10000^(-2i/dim). `tensor2tensor`: 10000^(-2i/(dim-2)), also those of Marian NMT and
    fairseq."""
    offset: CountOrZero = 0
    """Position of the first token; 2 in models of fairseq."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedPositions:
    """Learned position embeddings."""

    kind: Literal["learned"] = "learned"
    """Learned embeddings; longer lines are translated in pieces."""
    max_length: Count = 512
    """Number of positions."""
    offset: CountOrZero = 0
    """Rows of the table before that of the first token; 2 in models of fairseq."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023, section 2.3)."""

    kind: Literal["linear"] = "linear"
    """Position interpolation: all positions are divided by the factor."""
    factor: ScalingFactor
    """Ratio between the maximum sequence length and that of training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NtkScaling:
    """NTK-aware scaling: a larger base interpolates low frequencies and keeps high ones."""

    kind: Literal["ntk"] = "ntk"
    """NTK-aware: a larger base interpolates low frequencies and hardly changes high ones."""
    factor: ScalingFactor
    """Ratio between the maximum sequence length and that of training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnScaling:
    """YaRN: low frequencies are interpolated, attention is scaled (Peng et al. 2023, section 3)."""

    kind: Literal["yarn"] = "yarn"
    """YaRN: low frequencies are interpolated, high ones are kept, and attention logits are scaled
    by the attention factor."""
    factor: ScalingFactor
    """Ratio between the maximum sequence length and that of training."""
    original_length: Count
    """Maximum sequence length of training, in tokens."""
    beta_fast: Annotated[PositiveFloat, Former("fast")] = 32.0
    """YaRN beta_fast: dimensions with at least this many rotations over `original_length` are not
    interpolated."""
    beta_slow: Annotated[PositiveFloat, Former("slow")] = 1.0
    """YaRN beta_slow: dimensions with at most this many rotations over `original_length` are fully
    interpolated."""

    def conflicts(self) -> Iterator[Problem]:
        if self.beta_fast <= self.beta_slow:
            yield Problem("beta_fast", f"must be above beta_slow {self.beta_slow:g}")


ScalingConfig = LinearScaling | NtkScaling | YarnScaling


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryPositions:
    """Rotary position embeddings, RoPE (Su et al. 2021, section 3.2)."""

    kind: Literal["rotary"] = "rotary"
    """Rotary embeddings (RoPE) of the queries and keys of self-attention."""
    base: Annotated[float, Bounds(gt=1)] = 10000.0
    """Base of the rotary frequencies (theta)."""
    scaling: ScalingConfig | None = None
    """RoPE scaling for sequences longer than in training; null for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlibiPositions:
    """Attention with linear biases (Press et al. 2022, section 3)."""

    kind: Literal["alibi"] = "alibi"
    """ALiBi: attention logits decrease linearly with distance, with a slope for each head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class T5Positions:
    """T5's relative position bias (Raffel et al. 2020, section 2.1)."""

    kind: Annotated[Literal["t5"], Former(value="relative")] = "t5"
    """T5's relative position bias: a learned number for each head and distance bucket."""
    num_buckets: Annotated[int, Bounds(ge=4, le=MAX_COUNT)] = 32
    """Distance buckets; half of them hold a single distance. Even, since an encoder uses half of
    them for each direction."""
    max_distance: Count = 128
    """Distances from this one on share a bucket."""

    def conflicts(self) -> Iterator[Problem]:
        if self.num_buckets % 2:
            yield Problem("num_buckets", "must be even")
        if 2 * self.max_distance <= self.num_buckets:
            yield Problem("max_distance", f"must be above half of num_buckets {self.num_buckets}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NoPositions:
    """No positions: a causal decoder can still infer them (Haviv et al. 2022)."""

    kind: Literal["none"] = "none"
    """No positions: an encoder sees a bag of words."""


PositionsConfig = (
    SinusoidalPositions
    | LearnedPositions
    | RotaryPositions
    | AlibiPositions
    | T5Positions
    | NoPositions
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-AI 2024, section 2.1)."""

    kv_lora_rank: Annotated[Count, Former("dim")]
    """Rank of the latent that all keys and values are projected from."""
    rope_head_dim: Annotated[int, Bounds(ge=2, le=MAX_COUNT), Former("rotary_dim")]
    """Width of the rotary key that all heads share; even."""

    def conflicts(self) -> Iterator[Problem]:
        if self.rope_head_dim % 2:
            yield Problem("rope_head_dim", "must be even")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """What all networks share."""

    dim: Count = 256
    """Model width (d_model)."""
    num_heads: Count = 4
    """Attention heads; must divide `dim`."""
    num_kv_heads: Count | None = None
    """Key/value heads (grouped-query attention); null for `num_heads`."""
    head_width: Count | None = field(default=None, metadata=LEFT_OUT_IF_NULL)
    """Width of a head (d_kv); null for `dim` / `num_heads`."""
    attention_scale: PositiveFloat | None = field(default=None, metadata=LEFT_OUT_IF_NULL)
    """Factor of attention logits, 1 in T5; null for 1 / sqrt(head width)."""
    embedding_scale: PositiveFloat | None = field(default=None, metadata=LEFT_OUT_IF_NULL)
    """Factor of token embeddings, 1 in T5; null for sqrt(`dim`)."""
    latent: LatentConfig | None = None
    """Multi-head latent attention: the KV cache of self-attention holds a low-rank latent."""
    sliding_window: Annotated[Count | None, Former("window")] = None
    """Sliding-window size, counting the token itself; null for full attention."""
    qk_norm: bool = False
    """QK norm: RMSNorm on the queries and keys of self-attention."""
    feedforward_dim: Count = 1024
    """Inner width of the feed-forward blocks; a gated block has three matrices instead of two, so
    two thirds of this width give as many parameters."""
    activation: Literal["relu", "gelu", "silu", "swiglu", "geglu", "geglu_tanh"] = "relu"
    """Activation of the feed-forward blocks; swiglu and geglu are gated, and geglu_tanh has the
    tanh approximation of GELU, as T5 1.1."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm or RMSNorm."""
    norm_position: Literal["pre", "post", "deep"] = "pre"
    """Pre-norm (more stable), post-norm (the original paper), or DeepNorm (for 100 layers or
    more)."""
    norm_epsilon: PositiveFloat = 1e-6
    """Epsilon of each norm."""
    bias: bool = True
    """Biases in linear layers and LayerNorm."""
    positions: PositionsConfig = field(default_factory=SinusoidalPositions)
    """Position encoding."""
    embedding_norm: bool = False
    """Norm of the embeddings after positions are added (BART, mBART)."""
    initialization: Literal["xavier", "normal", "t5"] = "xavier"
    """Weight initialization: Xavier, normal with 0.02 and less for deep stacks (GPT-2), or T5."""
    dropout: Probability = 0.1
    """Dropout on the output of each block, before the residual connection."""
    embedding_dropout: Probability | None = None
    """Dropout on embeddings; null for `dropout`."""
    attention_dropout: Probability | None = None
    """Dropout on attention weights; null for `dropout`."""
    feedforward_dropout: Probability | None = None
    """Dropout inside the feed-forward blocks; null for `dropout`."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.num_heads if self.head_width is None else self.head_width

    @property
    def is_gated(self) -> bool:
        """Whether a feed-forward block has three matrices."""
        return self.activation in ("swiglu", "geglu", "geglu_tanh")

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def max_length(self) -> int | None:
        """Maximum sentence length that learned positions allow, or None for any length."""
        positions = self.positions
        return positions.max_length if isinstance(positions, LearnedPositions) else None

    def own_dropout(self, own: float | None) -> float:
        """Return a specific dropout, or `dropout` if it is None."""
        return self.dropout if own is None else own

    @property
    def dropouts(self) -> tuple[float, ...]:
        """Every dropout of the network."""
        own = self.embedding_dropout, self.attention_dropout, self.feedforward_dropout
        return self.dropout, *map(self.own_dropout, own)

    def conflicts(self) -> Iterator[Problem]:
        if self.head_width is None and self.dim % self.num_heads:
            yield Problem("num_heads", f"must divide dim {self.dim}")
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            yield Problem("num_kv_heads", f"must divide num_heads {self.num_heads}")
        if self.positions.kind == "sinusoidal" and self.dim % 2:
            yield Problem("dim", "must be even with sinusoidal positions")
        if getattr(self.positions, "frequencies", "") == "tensor2tensor" and self.dim == 2:
            yield Problem("dim", "must be above 2 with the frequencies of tensor2tensor")
        if self.latent is not None:
            yield from self._conflicts_of_latent()
        elif self.positions.kind == "rotary" and self.head_width is not None and self.head_dim % 2:
            yield Problem("head_width", "must be even with rotary positions")
        elif self.positions.kind == "rotary" and self.head_dim % 2:
            what = f"must leave rotary positions an even dim / num_heads, not {self.head_dim}"
            yield Problem("num_heads", what)

    def _conflicts_of_latent(self) -> Iterator[Problem]:
        if self.positions.kind != "rotary":
            yield Problem(
                "latent",
                "needs rotary positions, which its shared key encodes",
                f"positions of kind {self.positions.kind}",
                "write positions: {kind: rotary}",
            )
        if self.qk_norm:
            yield Problem("qk_norm", "must be false with latent, which has a norm of its own")
        for key, why in (
            ("num_kv_heads", "which all heads share"),
            ("head_width", "whose heads have dim / num_heads"),
            ("attention_scale", "which scales by its own width"),
        ):
            if getattr(self, key) is not None:
                yield Problem(key, f"must be null with latent, {why}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoderConfig(TransformerConfig):
    """The Transformer of Vaswani et al. 2017, with later variants."""

    kind: Literal["encoder_decoder"] = "encoder_decoder"
    """An encoder for the source, a decoder for the target."""
    num_encoder_layers: Count = 4
    """Encoder layers."""
    num_decoder_layers: Count = 4
    """Decoder layers."""
    tie_embeddings: Annotated[Literal["none", "output", "inputs", "all"], Former("tie")] = "all"
    """Tie the target embedding to the output projection (`output`), to the source embedding
    (`inputs`), or to both (`all`)."""
    output_bias: bool = False
    """Bias of the output projection."""
    train_output_bias: bool = True
    """Train that bias; false for imported models without one, where it excludes special tokens that
    they lack."""
    output_scale: PositiveFloat | None = field(default=None, metadata=LEFT_OUT_IF_NULL)
    """Factor of the hidden states that are projected to logits, `dim` ** -0.5 in T5; null for
    none."""
    source_eos: bool = True
    """Attend to the EOS of a source; false for imported models that were trained without it."""

    @property
    def trains_output_bias(self) -> bool:
        """Whether there is an output bias, and it is trained."""
        return self.output_bias and self.train_output_bias


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderOnlyConfig(TransformerConfig):
    """A causal or prefix language model of source and target (Radford et al. 2018)."""

    kind: Literal["decoder_only"] = "decoder_only"
    """One language model of source, `<sep>` and target."""
    num_layers: Count = 8
    """Layers."""
    source_attention: Literal["causal", "bidirectional"] = "causal"
    """Attention mask of the source: causal, or bidirectional (prefix LM)."""
    tie_embeddings: Annotated[Literal["none", "output"], Former("tie")] = "output"
    """Tie the embedding to the output projection (`output`)."""

    @property
    def max_length(self) -> int | None:
        """Maximum sentence length; source and target have half of the positions each."""
        positions = self.positions
        return positions.max_length // 2 if isinstance(positions, LearnedPositions) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedEncoderConfig(TransformerConfig):
    """An encoder trained with masked language modeling (Devlin et al. 2019)."""

    kind: Literal["masked_encoder"] = "masked_encoder"
    """Masked language model, to initialize an encoder_decoder from."""
    num_layers: Count = 4
    """Layers."""
    mask_prob: Annotated[float, Bounds(gt=0, lt=1), Former("mask_share")] = 0.15
    """Fraction of tokens to predict (BERT: 80% masked, 10% random, 10% unchanged)."""
    tie_embeddings: Annotated[Literal["none", "output"], Former("tie")] = "output"
    """Tie the embedding to the output projection (`output`)."""


ModelConfig = EncoderDecoderConfig | DecoderOnlyConfig | MaskedEncoderConfig
