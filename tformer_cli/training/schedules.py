"""Learning-rate schedules: a linear warm-up, then a decay."""

import math
from collections.abc import Callable

from tformer_cli.config.schema.training import (
    ConstantSchedule,
    CosineSchedule,
    InverseSquareRootSchedule,
    LinearSchedule,
    ScheduleConfig,
    StepSchedule,
)

Schedule = Callable[[int], float]
"""From a step, counted from 1, to its learning rate."""


def build_schedule(config: ScheduleConfig, *, peak: float, max_steps: int) -> Schedule:
    """Return the learning rate as a function of the step, which counts from 1.

    Linear warm-up to `peak` at `warmup_steps`, then decay until `max_steps`.
    """

    def learning_rate(step: int) -> float:
        if step < config.warmup_steps:
            return peak * step / config.warmup_steps
        return peak * _decay(config, step, max_steps)

    return learning_rate


def _decay(config: ScheduleConfig, step: int, max_steps: int) -> float:
    """Return the share of the peak at a step after the warm-up."""
    after = step - config.warmup_steps
    progress = min(1.0, after / max(1, max_steps - config.warmup_steps))
    match config:
        case CosineSchedule(final_ratio=final):
            return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))
        case LinearSchedule(final_ratio=final):
            return final + (1 - final) * (1 - progress)
        case InverseSquareRootSchedule():
            return math.sqrt(config.warmup_steps / step)
        case StepSchedule(step_size=step_size, factor=factor):
            return float(factor ** (after // step_size))
        case ConstantSchedule():
            return 1.0
