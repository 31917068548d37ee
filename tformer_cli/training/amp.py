"""What the loss is multiplied by, so that small gradients survive in float16."""

from dataclasses import dataclass, replace
from typing import Self

import torch

FIRST = 2.0**16
# Steps after which a larger factor is tried.
PATIENCE = 2000


@dataclass(frozen=True, slots=True)
class LossScale:
    """A factor that follows the gradients (Micikevicius et al. 2018, section 3.2).

    Gradients of the multiplied loss are divided by it before anything looks at them. Powers of two
    change no digit, so without float16 nothing depends on it and it stays 1.

    Attributes:
        factor: a power of two.
        num_steps: steps taken since it changed.
    """

    factor: float = 1.0
    num_steps: int = 0

    @classmethod
    def first(cls, precision: torch.dtype) -> Self:
        """Return the one to begin a training with."""
        return cls(FIRST if precision == torch.float16 else 1.0)

    @property
    def can_be_lowered(self) -> bool:
        """Whether gradients that overflow may be the fault of the factor."""
        return self.factor > 1.0

    def lowered(self) -> Self:
        """Return the one to redo a step with whose gradient has overflowed."""
        return replace(self, factor=self.factor / 2, num_steps=0)

    def stepped(self, precision: torch.dtype) -> Self:
        """Return the one for the step after one that went well."""
        if precision == torch.float16 and self.num_steps + 1 == PATIENCE:
            return replace(self, factor=self.factor * 2, num_steps=0)
        return replace(self, num_steps=self.num_steps + 1)
