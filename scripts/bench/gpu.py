"""Test, train and measure on a machine with a GPU, offline, with the installed packages.

Each part runs in a process of its own, so that a crash ends no other one. In the JSON a part that
failed is {"error": ...}, and the exit code is 1; a part without enough time, or without what it
needs, is {"left_out": ...}. Without a CUDA device the exit code is 2.
"""

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import log, run_in_process

from tformer_cli.errors import TformerError, TrainingError, UsageError
from tformer_cli.storage.atomic import write_json

Results = dict[str, Any]

# A part may take so many times as long as expected, if there is time for all.
PATIENCE = 4
MACHINE_SECONDS = 120
# Share by which first losses may differ, by dropout and rounding.
LOSS_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Part:
    """A function of this folder to call, MODULE.FUNCTION, and about how long it takes."""

    call: str
    seconds: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    package: str | None = None  # that the part needs beside torch


PACKAGES = {"marian": "transformers", "ctranslate2": "ctranslate2"}


def throughput(network: str, baseline: str, seconds: float) -> Part:
    """Return the part in which a baseline trains a network."""
    arguments = {"network": network, "baseline": baseline}
    package = PACKAGES.get(baseline.removesuffix("-compiled"))
    return Part("gpu_throughput.throughput", seconds, arguments, package)


def decoding(baseline: str, seconds: float) -> Part:
    """Return the part in which a baseline translates."""
    return Part("gpu_decode.decode", seconds, {"baseline": baseline}, PACKAGES.get(baseline))


# The most important ones come first.
PARTS = {
    "ceilings": Part("gpu_checks.ceilings", 15),
    "tests": Part("gpu_checks.run_tests", 115),
    "nccl": Part("gpu_checks.collectives", 8),
    "big": throughput("big", "ours", 50),
    "big-eager": throughput("big", "eager", 25),
    "big-marian": throughput("big", "marian", 35),
    "decode": decoding("ours", 60),
    "decode-marian": decoding("marian", 35),
    "base": throughput("base", "ours", 40),
    "big-marian-compiled": throughput("big", "marian-compiled", 50),
    "demo": Part("gpu_checks.demo", 40),
    "fp8": Part("gpu_checks.fp8", 8),
    "idle": Part("gpu_throughput.idle", 35, {"network": "big"}),
    "decode-ctranslate2": decoding("ctranslate2", 24),
    "tiny": throughput("tiny", "ours", 25),
}


def measure(part: Part, seconds_left: float) -> Results:
    """Return the results of a part, if its package is there and there is time for it."""
    if part.package is not None and importlib.util.find_spec(part.package) is None:
        return {"left_out": f"{part.package} is not installed"}
    if part.seconds > seconds_left:
        left = max(0, seconds_left)
        return {"left_out": f"takes about {part.seconds:.0f} s, and {left:.0f} s are left"}
    limit = min(PATIENCE * part.seconds, seconds_left)
    try:
        return run_in_process(part.call, seconds=limit, **part.arguments)
    except TrainingError as error:
        return {"error": str(error)}


def headline(results: Results) -> str:
    """Return the numbers of a part as a line."""
    if "error" in results:
        return f"FAILED: {results['error']}"
    if "left_out" in results:
        return f"left out: {results['left_out']}"
    numbers = {key: each for key, each in results.items() if isinstance(each, int | float)}
    return ", ".join(f"{key} {number:,.4g}" for key, number in numbers.items())


def variants(results: Results, key: str) -> Iterator[tuple[str, str, float, float]]:
    """Yield our training of a network and each other one of it, with a result of both."""
    values = {name: part[key] for name, part in results.items() if part and key in part}
    for name, value in values.items():
        ours = name.partition("-")[0]
        if name != ours and ours in values:
            yield ours, name, values[ours], value


def speed_ratios(results: Results) -> dict[str, float]:
    """Return how many times as fast ours is as each other training of the same network."""
    compared = variants(results, "target_tokens_per_second")
    return {f"{ours} / {name}": speed / other for ours, name, speed, other in compared}


def unlike_losses(results: Results) -> list[str]:
    """Return the trainings whose first loss is not that of ours, which has the same weights."""
    return [
        f"{name} begins with loss {other:.4f}, {ours} with {loss:.4f}"
        for ours, name, loss, other in variants(results, "initial_loss")
        if not math.isclose(other, loss, rel_tol=LOSS_TOLERANCE)
    ]


def measure_all(names: Sequence[str], machine: Results, seconds: float, output: Path) -> Results:
    """Measure parts one after the other, within some seconds; write the results after each."""
    begun = time.monotonic()
    # A part that has not run is null.
    parts: Results = dict.fromkeys(names)
    content: Results = {"machine": machine, "parts": parts}
    for name in names:
        log(f"[{time.monotonic() - begun:4.0f} s] {name} begins")
        results = measure(PARTS[name], begun + seconds - time.monotonic())
        parts[name] = results
        content["seconds"] = time.monotonic() - begun
        content["ratios"], content["unlike_losses"] = speed_ratios(parts), unlike_losses(parts)
        write_json(output, content)
        log(f"[{content['seconds']:4.0f} s] {name}: {headline(results)}")
    return content


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/gpu",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=Path("runs/gpu.json"), help="a JSON file")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be repeated")
    options = parser.parse_args(arguments)
    names = [name for name in PARTS if name in (options.only or PARTS)]
    begun = time.monotonic()
    try:
        machine = run_in_process("gpu_checks.machine", seconds=MACHINE_SECONDS)
        if machine["gpu"] is None:
            remedy = "run it on a machine with a GPU and a torch that sees it"
            got = f"torch {machine['torch']}"
            raise UsageError("scripts/gpu", "no CUDA device", got=got, remedy=remedy)
        log(f"{machine['gpu']}, torch {machine['torch']}")
        left = 60 * options.minutes - (time.monotonic() - begun)
        content = measure_all(names, machine, left, options.output)
    except TformerError as error:
        log(str(error))
        return 2
    for pair, ratio in content["ratios"].items():
        log(f"{pair}: {ratio:.2f}")
    for problem in content["unlike_losses"]:
        log(f"FAILED: {problem}")
    log(f"{(time.monotonic() - begun) / 60:.1f} minutes; all results: {options.output}")
    has_failed = any("error" in part for part in content["parts"].values())
    return int(has_failed or bool(content["unlike_losses"]))


if __name__ == "__main__":
    sys.exit(main())
