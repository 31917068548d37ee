"""Test, train and measure on a machine with a GPU, offline, with the installed packages.

Each part runs in a process of its own, so that a crash ends no other one. In the JSON a part that
failed is {"error": ...}, and the exit code is 1; a part without enough time, or without what it
needs, is {"left_out": ...}.
Without a CUDA device the exit code is 2.
"""

import argparse
import importlib.util
import math
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
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


def throughput(network: str, baseline: str, seconds: float) -> Part:
    """Return the part in which a baseline trains a network."""
    arguments = {"network": network, "baseline": baseline}
    package = "transformers" if baseline.startswith("marian") else None
    return Part("gpu_throughput.throughput", seconds, arguments, package)


# The most important ones come first.
PARTS = {
    "ceilings": Part("gpu_ceilings.ceilings", 15),
    "tests": Part("gpu_checks.run_tests", 115),
    "nccl": Part("gpu_checks.collectives", 8),
    "big": throughput("big", "ours", 50),
    "big-eager": throughput("big", "eager", 25),
    "big-marian": throughput("big", "marian", 35),
    "decode": Part("gpu_decode.decode", 60),
    "decode-marian": Part("gpu_decode.decode_marian", 35, package="transformers"),
    "base": throughput("base", "ours", 40),
    "big-marian-compiled": throughput("big", "marian-compiled", 50),
    "demo": Part("gpu_checks.demo", 40),
    "fp8": Part("gpu_ceilings.fp8", 8),
    "idle": Part("gpu_throughput.idle", 35, {"network": "big"}),
    "decode-ctranslate2": Part("gpu_decode.decode_ctranslate2", 24, package="ctranslate2"),
    "tiny": throughput("tiny", "ours", 25),
    "parts": Part("gpu_ceilings.parts_of_a_step", 20),
    "attention": Part("gpu_checks.attention", 15),
}
HEADLINES = {
    "passed": "{} tests passed",
    "skipped": "{} skipped",
    "target_tokens_per_second": "{:,.0f} target tokens/s",
    "mfu": "MFU {:.1%}",
    "share_of_gemm": "{:.1%} of the GEMM peak",
    "gemm_tflops": "GEMM {:,.0f} TFLOP/s",
    "copy_tb_per_second": "copy {:.2f} TB/s",
    "launch_microseconds": "{:.1f} us a launch",
    "padding_share": "{:.1%} padding",
    "loader_share": "loader {:.1%} of the time",
    "peak_memory_mib": "peak {:,.0f} MiB",
    "valid_score": "valid {:.2f}",
    "idle_share": "GPU idle {:.1%} of the time",
    "launches_per_step": "{:,.0f} launches a step",
    "waits_per_step": "{} waits a step",
    "sentences_per_second": "{:,.0f} sentences/s",
    "all_reduce_ms": "all-reduce {:.1f} ms",
}


def measure(part: Part, seconds_left: float) -> Results:
    """Return the results of a part, if its package is there and there is time for it."""
    if part.package is not None and importlib.util.find_spec(part.package) is None:
        return {"left_out": f"{part.package} is not installed"}
    if part.seconds > seconds_left:
        left = max(0, seconds_left)
        return {"left_out": f"takes about {part.seconds:.0f} s, and {left:.0f} s are left"}
    started = time.monotonic()
    limit = min(PATIENCE * part.seconds, seconds_left)
    try:
        results = run_in_process(part.call, seconds=limit, **part.arguments)
    except TrainingError as error:
        return {"error": str(error)}
    return results | {"part_seconds": time.monotonic() - started}


def headline(results: Results) -> str:
    """Return the main results of a part as a line."""
    if "error" in results:
        return f"FAILED: {results['error']}"
    if "left_out" in results:
        return f"left out: {results['left_out']}"
    words = [text.format(results[key]) for key, text in HEADLINES.items() if key in results]
    return ", ".join(words) or "done"


def speed_ratios(results: Mapping[str, Results | None]) -> dict[str, float]:
    """Return how many times as fast ours is as each other training of the same network."""
    speeds = {
        name: part["target_tokens_per_second"]
        for name, part in results.items()
        if part is not None and "padding_share" in part
    }
    return {
        f"{network} / {name}": speeds[network] / speeds[name] for network, name in _variants(speeds)
    }


def unlike_losses(results: Mapping[str, Results | None]) -> list[str]:
    """Return the trainings whose first loss is not that of ours, which has the same weights."""
    losses = {
        name: part["initial_loss"]
        for name, part in results.items()
        if part is not None and "initial_loss" in part
    }
    return [
        f"{name} begins with loss {losses[name]:.4f}, {network} with {losses[network]:.4f}"
        for network, name in _variants(losses)
        if not math.isclose(losses[name], losses[network], rel_tol=LOSS_TOLERANCE)
    ]


def _variants(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names of our training of a network, and of each other one of it."""
    pairs = [(name.partition("-")[0], name) for name in names]
    return [pair for pair in pairs if pair[0] != pair[1] and pair[0] in names]


def names_in(text: str | None) -> list[str]:
    """Return comma-separated names of parts in their order, or all."""
    if text is None:
        return list(PARTS)
    unknown = set(text.split(",")) - PARTS.keys()
    if unknown:
        known, got = ", ".join(PARTS), ", ".join(sorted(unknown))
        raise UsageError("--only", "no such part", got=got, remedy=f"choose from: {known}")
    return [name for name in PARTS if name in text.split(",")]


def measure_all(names: Sequence[str], machine: Results, seconds: float, output: Path) -> Results:
    """Measure parts one after the other, within some seconds; write the results after each."""
    begun = time.monotonic()
    # A part that has not run is null.
    content: Results = {
        "machine": machine,
        "python": platform.python_version(),
        "parts": dict.fromkeys(names),
        "ratios": {},
        "unlike_losses": [],
    }
    write_json(output, content)
    for name in names:
        log(f"[{time.monotonic() - begun:4.0f} s] {name} begins")
        results = measure(PARTS[name], begun + seconds - time.monotonic())
        content["seconds"] = time.monotonic() - begun
        content["parts"][name] = results
        content["ratios"] = speed_ratios(content["parts"])
        content["unlike_losses"] = unlike_losses(content["parts"])
        write_json(output, content)
        log(f"[{content['seconds']:4.0f} s] {name}: {headline(results)}")
    return content


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/gpu.json"), help="default: %(default)s"
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="for all parts (default: %(default)g)"
    )
    parser.add_argument("--only", metavar="PART,...", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    try:
        names = names_in(options.only)
        if importlib.util.find_spec("torch") is None:
            what = "torch is not installed"
            raise UsageError("scripts/gpu", what, got=sys.executable, remedy="install it")
        machine = run_in_process("gpu_checks.machine", seconds=MACHINE_SECONDS)
        if machine["gpu"] is None:
            raise UsageError(
                "scripts/gpu",
                "no CUDA device",
                got=f"torch {machine['torch']}",
                remedy="run it on a machine with a GPU and a torch that sees it",
            )
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
