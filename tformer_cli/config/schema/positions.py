"""How a network knows the order of its tokens: `model.positions`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from tformer_cli.config.schema.limits import MOST, Bounds, Conflict, Count, Former, PositiveFloat

Factor = Annotated[float, Bounds(minimum=1)]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023, section 2.3)."""

    kind: Literal["linear"] = "linear"
    """All positions closer together (interpolation)."""
    factor: Factor
    """How many times longer sequences may be than those in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NtkScaling:
    """A larger base, so that fast waves stay and slow ones are interpolated."""

    kind: Literal["ntk"] = "ntk"
    """A larger base: slow waves are slowed down, fast ones hardly (NTK-aware)."""
    factor: Factor
    """How many times longer sequences may be than those in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnScaling:
    """Interpolation of slow waves only, and sharper attention (Peng et al. 2023, section 3)."""

    kind: Literal["yarn"] = "yarn"
    """Slow waves are interpolated, fast ones stay, and attention is sharpened."""
    factor: Factor
    """How many times longer sequences may be than those in training."""
    original_length: Count
    """Longest sequence in training, in tokens."""
    beta_fast: Annotated[PositiveFloat, Former("fast")] = 32.0
    """Waves that turn at least so often within `original_length` stay."""
    beta_slow: Annotated[PositiveFloat, Former("slow")] = 1.0
    """Waves that turn at most so often within `original_length` are interpolated wholly."""

    def conflicts(self) -> Iterator[Conflict]:
        if self.beta_fast <= self.beta_slow:
            yield Conflict(
                "beta_fast", f"must be above beta_slow ({self.beta_slow:g})", f"{self.beta_fast:g}"
            )


ScalingConfig = LinearScaling | NtkScaling | YarnScaling


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryPositions:
    """Queries and keys turned by their positions (Su et al. 2021, section 3.2)."""

    kind: Literal["rotary"] = "rotary"
    """Queries and keys of self-attention are turned by their positions."""
    base: Annotated[float, Bounds(above=1)] = 10000.0
    """The slowest wave has a length of about 2 pi times this, in tokens."""
    scaling: ScalingConfig | None = None
    """For sequences longer than those in training; null turns as in training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlibiPositions:
    """Attention falls with distance (Press et al. 2022, section 3)."""

    kind: Literal["alibi"] = "alibi"
    """Attention falls with distance, in each head at a rate of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class T5Positions:
    """A trained number for each head and class of distances (Raffel et al. 2020, section 2.1)."""

    kind: Annotated[Literal["t5"], Former(value="relative")] = "t5"
    """A trained number for each head and class of distances is added to attention (T5)."""
    num_buckets: Annotated[int, Bounds(minimum=4, maximum=MOST)] = 32
    """Classes of distances, half of them of one distance each; even, for an encoder has as many
    for what stands before a token as for what stands behind it."""
    max_distance: Count = 128
    """From this distance on all are in one class, in tokens."""

    def conflicts(self) -> Iterator[Conflict]:
        if self.num_buckets % 2:
            yield Conflict("num_buckets", "must be even", str(self.num_buckets))
        if 2 * self.max_distance <= self.num_buckets:
            what = f"must be above half of num_buckets ({self.num_buckets})"
            yield Conflict("max_distance", what, str(self.max_distance))


@dataclass(frozen=True, kw_only=True, slots=True)
class NoPositions:
    """No positions: a decoder still tells prefixes apart (Haviv et al. 2022)."""

    kind: Literal["none"] = "none"
    """No positions: what an encoder reads is a bag of words."""


PositionsConfig = (
    SinusoidalPositions
    | LearnedPositions
    | RotaryPositions
    | AlibiPositions
    | T5Positions
    | NoPositions
)
