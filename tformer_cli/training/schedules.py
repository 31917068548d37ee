"""The learning rate as a function of the step."""

import math
from collections.abc import Callable

from tformer_cli.config.schema.schedule import (
    ConstantSchedule,
    CosineSchedule,
    InverseSquareRootSchedule,
    LinearSchedule,
    ScheduleConfig,
    StepSchedule,
)

Schedule = Callable[[int], float]


def build_schedule(config: ScheduleConfig, *, peak: float, max_steps: int) -> Schedule:
    """Return the learning rate of optimiser step 1, 2, ... `max_steps`.

    The rate rises in a straight line to `peak` at step `warmup_steps`, then decays from there.

    Args:
        config: the shape of the decay.
        peak: the highest learning rate.
        max_steps: the last step.
    """

    def rate(step: int) -> float:
        if step < config.warmup_steps:
            return peak * step / config.warmup_steps
        return peak * _decay(config, step, max_steps)

    return rate


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
