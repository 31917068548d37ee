"""What a value may be: the limits of a number, and a rule that a value breaks."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class Bounds:
    """The interval a number must lie in; a bound that is None is not there."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None

    def rule(self, value: float) -> str | None:
        """Return the bound that `value` breaks, in words, or None."""
        # Turned round, for no comparison holds of a value that is not a number.
        if self.minimum is not None and not value >= self.minimum:
            return f"must be at least {self.minimum:.10g}"
        if self.maximum is not None and not value <= self.maximum:
            return f"must be at most {self.maximum:.10g}"
        if self.above is not None and not value > self.above:
            return f"must be above {self.above:.10g}"
        if self.below is not None and not value < self.below:
            return f"must be below {self.below:.10g}"
        return None


@dataclass(frozen=True, slots=True)
class Former:
    """The former name of a key, or of its only value: still accepted, with a warning."""

    key: str | None = None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A rule that a value breaks.

    Attributes:
        key: the path of the key to change, relative to the dataclass that reports it.
        what: the rule.
        got: the value that breaks it, as text.
        remedy: what to write instead, or None where the rule says it.
    """

    key: str
    what: str
    got: str | None = None
    remedy: str | None = None


# The bytes of a matrix that is so wide and so high can still be counted.
MOST = 2**29


Count = Annotated[int, Bounds(minimum=1, maximum=MOST)]


CountOrZero = Annotated[int, Bounds(minimum=0, maximum=MOST)]


# torch's generator of a CPU looks at 32 bits.
Seed = Annotated[int, Bounds(minimum=0, maximum=2**32 - 1)]


PositiveFloat = Annotated[float, Bounds(above=0)]


Probability = Annotated[float, Bounds(minimum=0, below=1)]
