"""How the learning rate changes over the steps: `training.schedule`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tformer_cli.config.schema.limits import Bounds, Count, CountOrZero


@dataclass(frozen=True, kw_only=True, slots=True)
class CosineSchedule:
    """Half a cosine from the peak down (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"
    """Half a cosine from the peak to `final_ratio` of it at `max_steps`."""
    warmup_steps: CountOrZero = 400
    """Steps of linear rise to the peak."""
    final_ratio: Annotated[float, Bounds(minimum=0, maximum=1)] = 0.01
    """Learning rate at the end, as a share of the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearSchedule:
    """A straight line from the peak down."""

    kind: Literal["linear"] = "linear"
    """A straight line from the peak to `final_ratio` of it at `max_steps`."""
    warmup_steps: CountOrZero = 400
    """Steps of linear rise to the peak."""
    final_ratio: Annotated[float, Bounds(minimum=0, maximum=1)] = 0.01
    """Learning rate at the end, as a share of the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InverseSquareRootSchedule:
    """Decay with the square root of the step (Vaswani et al. 2017, section 5.3)."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    """Proportional to 1/sqrt(step) after the warm-up."""
    warmup_steps: Count = 400
    """Steps of linear rise to the peak; the decay is measured from its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSchedule:
    """A staircase."""

    kind: Literal["step"] = "step"
    """Multiplied by `factor` every `step_size` steps after the warm-up."""
    warmup_steps: CountOrZero = 400
    """Steps of linear rise to the peak."""
    step_size: Count = 1000
    """Steps between two reductions."""
    factor: Annotated[float, Bounds(above=0, below=1)] = 0.5
    """What each reduction multiplies by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantSchedule:
    """The peak, for ever."""

    kind: Literal["constant"] = "constant"
    """The peak, to the end."""
    warmup_steps: CountOrZero = 400
    """Steps of linear rise to the peak."""


ScheduleConfig = (
    CosineSchedule | LinearSchedule | InverseSquareRootSchedule | StepSchedule | ConstantSchedule
)
