"""When the GPU waits while our model trains, whether it waits for the loader, and what it does."""

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from gpu_parts.figures import wait_for
from gpu_parts.throughput import LOADING, begin
from torch.profiler import ProfilerActivity, profile

Interval = tuple[float, float]

# What a trace calls the device's work; a CPU works in operations.
DEVICE_WORK = {"cuda": {"kernel", "gpu_memcpy", "gpu_memset"}, "cpu": {"cpu_op"}}
STEP = "a step"
# How the operations begin that torch chooses between, forward and backward.
ATTENTION = "aten::_scaled_dot_product_"
NUM_TOP = 15
NAME_LENGTH = 100


def idle(
    network: str,
    *,
    device: str = "cuda",
    precision: str = "bfloat16",
    vocab_size: int = 32_000,
    batch_tokens: int = 32_768,
    num_pairs: int = 100_000,
    warm_up: int = 10,
    steps: int = 8,
) -> dict[str, object]:
    """Profile some steps of our training.

    Args:
        network: a key of NETWORKS.
        device: where.
        precision: number format of matrix products.
        vocab_size: of both sides.
        batch_tokens: padded tokens of a step on either side.
        num_pairs: sentences to draw batches from.
        warm_up: steps before those that are profiled.
        steps: that are profiled.
    """
    task, feed, losses = begin(
        network,
        "ours",
        device=device,
        precision=precision,
        vocab_size=vocab_size,
        batch_tokens=batch_tokens,
        num_pairs=num_pairs,
    )
    activities = [ProfilerActivity.CPU]
    if task.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with contextlib.closing(feed):
        for _ in islice(losses, warm_up):
            pass
        wait_for(task.device)
        with profile(activities=activities) as profiler:
            for _ in range(steps):
                with torch.profiler.record_function(STEP):
                    next(losses)
            wait_for(task.device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return {"steps": steps, **shares(events, DEVICE_WORK[task.device.type])}


def shares(events: Iterable[dict[str, Any]], work: set[str]) -> dict[str, object]:
    """Return what part of the time the device was idle, and why, and what it did, from a trace.

    Args:
        events: with name, category `cat`, begin `ts` and duration `dur` in microseconds.
        work: the categories that are the device's work.

    Raises:
        ValueError: there is none.
    """
    # Counters and names of threads have no duration.
    timed = [event for event in events if "dur" in event]
    spans = {
        name: [_span(e) for e in timed if e["name"] == name and e.get("cat") == "user_annotation"]
        for name in (STEP, LOADING)
    }
    worked = [event for event in timed if event.get("cat") in work]
    if not worked:
        raise ValueError("the profiler has seen no work of the device, so nothing is known of it")
    wall = (spans[STEP][0][0], spans[STEP][-1][1])
    gaps = list(idle_intervals(wall, [_span(event) for event in worked]))
    idle_time = sum(end - start for start, end in gaps)
    waiting = overlap(gaps, spans[LOADING])
    length = wall[1] - wall[0]
    return {
        "seconds": length / 1e6,
        "idle_share": idle_time / length,
        "loader_share_of_idle": waiting / idle_time if idle_time else 0.0,
        "loader_share": sum(end - start for start, end in spans[LOADING]) / length,
        "attention": Counter(e["name"] for e in timed if e["name"].startswith(ATTENTION)),
        "top": top(worked),
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
    """Return the time that two sets of intervals, each disjoint in itself, have in common."""
    return sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in ones
        for other_start, other_end in others
    )


def top(worked: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return what the device was busiest with, each with its share of the work."""
    times: Counter[str] = Counter()
    for event in worked:
        times[event["name"][:NAME_LENGTH]] += event["dur"]
    total = sum(times.values())
    return {name: time / total for name, time in times.most_common(NUM_TOP)}


def _span(event: dict[str, Any]) -> Interval:
    return event["ts"], event["ts"] + event["dur"]
