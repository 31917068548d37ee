"""Schedules against tables written out, and what holds of all of them."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.schema.training import (
    ConstantSchedule,
    CosineSchedule,
    InverseSquareRootSchedule,
    LinearSchedule,
    StepSchedule,
)
from tformer_cli.training.schedules import build_schedule

TABLES = [
    (ConstantSchedule(warmup_steps=2), [4.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
    (LinearSchedule(warmup_steps=2, final_ratio=0.0), [4.0, 8.0, 6.0, 4.0, 2.0, 0.0]),
    (LinearSchedule(warmup_steps=2, final_ratio=0.5), [4.0, 8.0, 7.0, 6.0, 5.0, 4.0]),
    (
        StepSchedule(warmup_steps=1, step_size=2, factor=0.5),
        [8.0, 8.0, 4.0, 4.0, 2.0, 2.0],
    ),
    (
        InverseSquareRootSchedule(warmup_steps=4),
        [2.0, 4.0, 6.0, 8.0, 8 * math.sqrt(4 / 5), 8 * math.sqrt(4 / 6)],
    ),
    (
        CosineSchedule(warmup_steps=2, final_ratio=0.0),
        [4.0, 8.0, 8 * (1 + math.cos(math.pi / 4)) / 2, 4.0, 8 * (1 - math.sqrt(0.5)) / 2, 0.0],
    ),
]


@pytest.mark.parametrize(("config", "rates"), TABLES, ids=lambda value: getattr(value, "kind", ""))
def test_schedule_equals_the_table_written_out(config, rates):
    schedule = build_schedule(config, peak=8.0, max_steps=6)
    assert [schedule(step) for step in range(1, 7)] == pytest.approx(rates, abs=1e-12)


schedules = st.one_of(
    st.builds(ConstantSchedule, warmup_steps=st.integers(0, 50)),
    st.builds(LinearSchedule, warmup_steps=st.integers(0, 50), final_ratio=st.floats(0, 1)),
    st.builds(CosineSchedule, warmup_steps=st.integers(0, 50), final_ratio=st.floats(0, 1)),
    st.builds(InverseSquareRootSchedule, warmup_steps=st.integers(1, 50)),
    st.builds(
        StepSchedule,
        warmup_steps=st.integers(0, 50),
        # Of steps one by one, without warm-up, the first is below the peak already.
        step_size=st.integers(2, 20),
        factor=st.floats(0.1, 0.9),
    ),
)


@given(schedules)
def test_schedule_rises_to_the_peak_and_never_again(config):
    schedule = build_schedule(config, peak=1.0, max_steps=100)
    rates = [schedule(step) for step in range(1, 101)]
    top = max(config.warmup_steps, 1)
    assert rates[top - 1] == pytest.approx(1.0, abs=0.02)
    assert all(a <= b + 1e-12 for a, b in pairwise(rates[:top]))
    assert all(a >= b - 1e-12 for a, b in pairwise(rates[top - 1 :]))
    assert min(rates) >= 0


@given(schedules)
def test_schedule_has_no_jump_at_the_end_of_the_warm_up(config):
    schedule = build_schedule(config, peak=1.0, max_steps=100_000)
    if config.warmup_steps:
        assert schedule(config.warmup_steps) == pytest.approx(1.0)
