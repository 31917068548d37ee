"""How long and why the GPU is idle while our model trains, and what it does."""

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from flops import synchronize
from gpu_throughput import LOADING, begin
from torch.profiler import ProfilerActivity, profile, record_function

STEP = "a step"
DEVICE_WORK = {"cuda": {"kernel", "gpu_memcpy", "gpu_memset"}, "cpu": {"cpu_op"}}
# Prefix of the operations that torch chooses between.
ATTENTION = "aten::_scaled_dot_product_"
NUM_TOP, NAME_LENGTH = 15, 100

Interval = tuple[float, float]


def idle(network: str, *, warm_up: int = 10, steps: int = 8, **options: Any) -> dict[str, object]:
    """Profile some steps of our training; `options` are those of `begin`."""
    task, feed, losses = begin(network, "ours", **options)
    activities = [ProfilerActivity.CPU]
    if task.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with contextlib.closing(feed):
        for _ in islice(losses, warm_up):
            pass
        synchronize(task.device)
        with profile(activities=activities) as profiler:
            for _ in range(steps):
                with record_function(STEP):
                    next(losses)
            synchronize(task.device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return {"steps": steps, **trace_shares(events, DEVICE_WORK[task.device.type])}


def trace_shares(events: Iterable[dict[str, Any]], work: set[str]) -> dict[str, object]:
    """Return from a trace how long the device was idle, why, and what it did.

    Args:
        events: with name, category `cat`, begin `ts` and duration `dur` in microseconds.
        work: categories of the device's work.

    Raises:
        ValueError: there is no such work.
    """
    # Counters and names of threads have no duration.
    timed = [event for event in events if "dur" in event]
    spans = {
        name: [_span(e) for e in timed if e["name"] == name and e.get("cat") == "user_annotation"]
        for name in (STEP, LOADING)
    }
    worked = [event for event in timed if event.get("cat") in work]
    if not worked:
        raise ValueError("the profiler has recorded no work of the device")
    wall = (spans[STEP][0][0], spans[STEP][-1][1])
    gaps = list(idle_intervals(wall, [_span(event) for event in worked]))
    idle_time = sum(end - start for start, end in gaps)
    length = wall[1] - wall[0]
    times: Counter[str] = Counter()
    for event in worked:
        times[event["name"][:NAME_LENGTH]] += event["dur"]
    total = sum(times.values())
    return {
        "seconds": length / 1e6,
        "idle_share": idle_time / length,
        "loader_share_of_idle": overlap(gaps, spans[LOADING]) / idle_time if idle_time else 0.0,
        "loader_share": sum(end - start for start, end in spans[LOADING]) / length,
        "attention": Counter(e["name"] for e in timed if e["name"].startswith(ATTENTION)),
        "top": {name: spent / total for name, spent in times.most_common(NUM_TOP)},
    }


def idle_intervals(wall: Interval, busy: Sequence[Interval]) -> Iterator[Interval]:
    """Yield the parts of `wall` that no busy interval covers, in order; those may overlap."""
    free_from, stop = wall
    for start, end in sorted(busy):
        if start >= stop:
            break
        if start > free_from:
            yield free_from, start
        free_from = max(free_from, end)
    if free_from < stop:
        yield free_from, stop


def overlap(ones: Sequence[Interval], others: Sequence[Interval]) -> float:
    """Return the time that two sets of disjoint intervals have in common."""
    return sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in ones
        for other_start, other_end in others
    )


def _span(event: dict[str, Any]) -> Interval:
    return event["ts"], event["ts"] + event["dur"]
