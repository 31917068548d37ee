"""Test, train and measure on a machine with a GPU, offline, with the installed packages.

Each part runs in a process of its own, so that a crash ends no other one. In the JSON a part that
failed is {"error": ...}, and the exit code is 1; a part without enough time or without a package is
{"left_out": ...}. Without a CUDA device the exit code is 2.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import command, log

from tformer_cli.errors import TformerError

Results = dict[str, Any]

# Packages of tformer_cli's training loop, of its loader, and of whole runs with their scores.
LOOP = ("torch", "numpy")
LOADER = (*LOOP, "sentencepiece", "tqdm", "yaml")
RUNS = (*LOADER, "safetensors", "sacrebleu")
PACKAGES = (*RUNS, "typer", "pytest", "transformers")
# As `tformer` sets it.
SEGMENTS = "expandable_segments:True"
ENVIRONMENT = {"PYTORCH_ALLOC_CONF": SEGMENTS, "PYTORCH_CUDA_ALLOC_CONF": SEGMENTS}
# A part may take so many times as long as expected, if there is time for all.
PATIENCE = 4


@dataclass(frozen=True, slots=True)
class Part:
    """A function to call."""

    name: str  # in the JSON
    call: str  # MODULE.FUNCTION of this folder
    seconds: float  # that it takes about
    needs: tuple[str, ...] = LOOP  # packages
    arguments: Mapping[str, Any] = field(default_factory=dict)


def throughput(network: str, baseline: str, seconds: float) -> Part:
    """Return the part in which a baseline trains a network."""
    return Part(
        network if baseline == "ours" else f"{network}-{baseline}",
        "gpu_throughput.throughput",
        seconds,
        (*RUNS, "transformers") if baseline == "marian" else LOADER,
        {"network": network, "baseline": baseline},
    )


MACHINE = Part("machine", "gpu_checks.machine", 60, ("torch",))
PARTS = (
    Part("tests", "gpu_checks.run_tests", 45, (*LOOP, "pytest"), {"kind": "frugal"}),
    Part("run-tests", "gpu_checks.run_tests", 60, (*RUNS, "pytest"), {"kind": "other"}),
    Part("demo", "gpu_demo.demo", 50, RUNS),
    throughput("big", "ours", 30),
    throughput("big", "marian", 40),
    throughput("deep", "ours", 35),
    throughput("deep", "marian", 45),
    Part("idle", "gpu_idle.idle", 30, LOADER, {"network": "big"}),
    Part("attention", "gpu_checks.attention", 15),
    throughput("big", "checkpointed", 30),
    # Compilation takes longest and is the least certain, so it comes last.
    throughput("big", "compiled", 100),
    throughput("deep", "compiled", 120),
)


class Session:
    """Runs parts one after the other, until the seconds of all together are over.

    Attributes:
        results: of each part, by name.
    """

    def __init__(
        self,
        seconds: float,
        *,
        missing: Sequence[str] = (),
        log: Callable[[str], object] = log,
    ) -> None:
        self.results: dict[str, Results] = {}
        self._end = time.monotonic() + seconds
        self._missing = missing
        self._begun = time.monotonic()
        self._log = log

    @property
    def seconds(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() - self._begun

    @property
    def has_failed(self) -> bool:
        """Whether any part has failed."""
        return any("error" in results for results in self.results.values())

    def run(self, part: Part) -> Results:
        """Run a part if it can run and there is time; return its results."""
        reason = self._reason_to_leave_out(part)
        if reason is None:
            self._report(f"{part.name} begins")
            started = time.monotonic()
            results = self._run(part)
            results["part_seconds"] = time.monotonic() - started
        else:
            results = {"left_out": reason}
        self.results[part.name] = results
        self._report(f"{part.name}: {headline(results)}")
        return results

    def _reason_to_leave_out(self, part: Part) -> str | None:
        missing = [package for package in part.needs if package in self._missing]
        if missing:
            return f"needs {', '.join(missing)}: not installed"
        left = self._end - time.monotonic()
        if part.seconds > left:
            return f"takes about {part.seconds:.0f} s, and {max(0, left):.0f} s are left"
        return None

    def _run(self, part: Part) -> Results:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            words = (part.call, json.dumps(part.arguments), str(file))
            try:
                done = subprocess.run(
                    command("harness.call_into_file", *words),
                    stdin=subprocess.DEVNULL,
                    env=ENVIRONMENT | os.environ,
                    # The results are in the JSON; what is printed is progress.
                    stdout=sys.stderr.fileno(),
                    timeout=min(PATIENCE * part.seconds, self._end - time.monotonic()),
                )
            except subprocess.TimeoutExpired as error:
                return {"error": f"not done after {error.timeout:.1f} s"}
            if done.returncode or not file.exists():
                return {"error": f"its process ended with exit code {done.returncode}"}
            return json.loads(file.read_text(encoding="utf-8"))

    def _report(self, line: str) -> None:
        self._log(f"[{self.seconds:4.0f} s] {line}")


def headline(results: Results) -> str:
    """Return the main results of a part as a line."""
    if "error" in results:
        return f"FAILED: {results['error']}"
    if "left_out" in results:
        return f"left out: {results['left_out']}"
    words = [text.format(results[key]) for key, text in HEADLINES.items() if key in results]
    return ", ".join(words) or "done"


HEADLINES = {
    "gpu": "{}",
    "passed": "{} tests passed",
    "skipped": "{} skipped",
    "target_tokens_per_second": "{:,.0f} target tokens/s",
    "mfu": "MFU {:.1%}",
    "share_of_gemm": "{:.1%} of the GEMM peak",
    "padding_share": "{:.1%} padding",
    "loader_share": "loader {:.1%} of the time",
    "peak_memory_mib": "peak {:,.0f} MiB",
    "valid_score": "valid {:.2f}",
    "idle_share": "GPU idle {:.1%} of the time",
    "loader_share_of_idle": "waiting for the loader {:.1%} of that",
}


def ratios(results: Mapping[str, Results]) -> dict[str, float]:
    """Return how many times as fast ours is as Marian, and a variant of ours as ours."""
    speeds = {
        name: part["target_tokens_per_second"]
        for name, part in results.items()
        if "padding_share" in part
    }
    pairs = []
    for name in speeds:
        network, _, baseline = name.partition("-")
        if baseline and network in speeds:
            pairs.append((network, name) if baseline == "marian" else (name, network))
    return {f"{one} / {other}": speeds[one] / speeds[other] for one, other in pairs}


def report(session: Session, parts: Sequence[Part], missing: Sequence[str]) -> dict[str, Any]:
    """Return all results so far as plain data; a part that has not run is None."""
    return {
        "machine": session.results[MACHINE.name],
        "python": platform.python_version(),
        "missing_packages": list(missing),
        "seconds": session.seconds,
        "parts": {part.name: session.results.get(part.name) for part in parts},
        "ratios": ratios(session.results),
    }


def parts_of(names: str | None) -> Sequence[Part]:
    """Return the parts of comma-separated names in their order, or all.

    Raises:
        ValueError: a name is unknown.
    """
    if names is None:
        return PARTS
    unknown = set(names.split(",")) - {part.name for part in PARTS}
    if unknown:
        known = ", ".join(part.name for part in PARTS)
        raise ValueError(
            f"--only: no such part ({', '.join(sorted(unknown))}); choose from: {known}"
        )
    return [part for part in PARTS if part.name in names.split(",")]


def refuse(message: str) -> int:
    """Print a message; return the exit code."""
    log(message)
    return 2


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
    parser.add_argument(
        "--only", metavar="PART,...", help=f"of {', '.join(part.name for part in PARTS)}"
    )
    options = parser.parse_args(arguments)
    try:
        parts = parts_of(options.only)
    except ValueError as error:
        return refuse(str(error))
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if "torch" in missing:
        return refuse(f"scripts/gpu: torch is not installed ({sys.executable}); install it")
    quiet = Session(2 * MACHINE.seconds, log=lambda line: None)
    machine = quiet.run(MACHINE)
    if not machine.get("gpu"):
        return refuse(
            f"scripts/gpu: no CUDA device (torch {machine.get('torch', machine.get('error'))}); "
            "run it on a machine with a GPU and a torch that sees it"
        )
    session = Session(60 * options.minutes - quiet.seconds, missing=missing)
    session.results.update(quiet.results)
    log(f"{machine['gpu']}, torch {machine['torch']}")
    if missing:
        log(f"not installed: {', '.join(missing)}")
    try:
        write(options.output, report(session, parts, missing))
    except TformerError as error:
        return refuse(str(error))
    for part in parts:
        session.run(part)
        write(options.output, report(session, parts, missing))
    for pair, ratio in ratios(session.results).items():
        log(f"{pair}: {ratio:.2f}")
    log(f"{session.seconds / 60:.1f} minutes; all results: {options.output}")
    return 1 if session.has_failed else 0


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    from tformer_cli.storage.atomic import write_text

    write_text(file, json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
