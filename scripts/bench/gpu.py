"""Test, train and measure on a machine with a GPU, offline, with the packages that are there.

Each part runs in a process of its own, so that none takes another one down with it. What fails is
in the JSON as {"error": ...}, and the exit code is 1 then; what the time or the installed packages
do not suffice for is there as {"left_out": ...}. Without a CUDA device the exit code is 2.
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

from apart import command

from tformer_cli.errors import TformerError

Figures = dict[str, Any]

# What it takes to import tformer_cli's loop, its loader, and whole runs with their scores.
LOOP = ("torch", "numpy")
LOADER = (*LOOP, "sentencepiece", "tqdm")
RUNS = (*LOADER, "safetensors", "yaml", "sacrebleu")
PACKAGES = (*RUNS, "typer", "pytest", "transformers")
# As `tformer` itself sets it.
SEGMENTS = "expandable_segments:True"
ENVIRONMENT = {"PYTORCH_ALLOC_CONF": SEGMENTS, "PYTORCH_CUDA_ALLOC_CONF": SEGMENTS}
# How many times as long as expected a part may take, if the time for all of them lasts.
PATIENCE = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Something to find out.

    Attributes:
        name: what it is called in the JSON.
        call: MODULE.FUNCTION of a file beside this one.
        arguments: of the function.
        seconds: it takes about.
        needs: packages that it cannot do without.
    """

    name: str
    call: str
    seconds: float
    needs: tuple[str, ...] = LOOP
    arguments: Mapping[str, Any] = field(default_factory=dict)


def throughput(network: str, contestant: str, seconds: float) -> Part:
    """Return the part that lets one contestant train one network."""
    return Part(
        network if contestant == "ours" else f"{network}-{contestant}",
        "gpu_parts.throughput.throughput",
        seconds,
        (*RUNS, "transformers") if contestant == "marian" else LOADER,
        {"network": network, "contestant": contestant},
    )


MACHINE = Part("machine", "gpu_parts.machine.machine", 60, ("torch",))
PARTS = (
    Part("tests", "gpu_parts.tests.run", 45, (*LOOP, "pytest"), {"kind": "frugal"}),
    Part("run-tests", "gpu_parts.tests.run", 60, (*RUNS, "pytest"), {"kind": "other"}),
    Part("demo", "gpu_parts.demo.demo", 50, RUNS),
    throughput("big", "ours", 30),
    throughput("big", "marian", 40),
    throughput("deep", "ours", 35),
    throughput("deep", "marian", 45),
    Part("idle", "gpu_parts.idle.idle", 30, LOADER, {"network": "big"}),
    Part("attention", "gpu_parts.attention.attention", 15),
    throughput("big", "checkpointed", 30),
    # Compilation takes longest and is the least certain, so it comes last.
    throughput("big", "compiled", 100),
    throughput("deep", "compiled", 120),
)


class Session:
    """Runs parts one after the other until the time is up.

    Attributes:
        figures: of each part, by name.
    """

    def __init__(
        self,
        seconds: float,
        *,
        missing: Sequence[str] = (),
        say: Callable[[str], object] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        """Begin.

        Args:
            seconds: that all parts may take together.
            missing: packages that are not installed.
            say: hears how it goes.
        """
        self.figures: dict[str, Figures] = {}
        self._end = time.monotonic() + seconds
        self._missing = missing
        self._begun = time.monotonic()
        self._say = say

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.monotonic() - self._begun

    @property
    def has_failed(self) -> bool:
        """Whether any part has failed."""
        return any("error" in figures for figures in self.figures.values())

    def run(self, part: Part) -> Figures:
        """Run a part, if it can be run and still fits; keep and return its figures."""
        reason = self._hindrance(part)
        if reason is None:
            self._tell(f"{part.name} begins")
            started = time.monotonic()
            figures = self._run(part)
            figures["part_seconds"] = time.monotonic() - started
        else:
            figures = {"left_out": reason}
        self.figures[part.name] = figures
        self._tell(f"{part.name}: {headline(figures)}")
        return figures

    def _hindrance(self, part: Part) -> str | None:
        lacking = [package for package in part.needs if package in self._missing]
        if lacking:
            return f"needs {', '.join(lacking)}: not installed"
        left = self._end - time.monotonic()
        if part.seconds > left:
            return f"takes about {part.seconds:.0f} s, and {max(0, left):.0f} s are left"
        return None

    def _run(self, part: Part) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "figures.json"
            words = (part.call, json.dumps(part.arguments), str(file))
            try:
                done = subprocess.run(
                    command("gpu_parts.part.serve", *words),
                    stdin=subprocess.DEVNULL,
                    env=ENVIRONMENT | os.environ,
                    # The JSON has the figures; whatever else is printed is progress.
                    stdout=sys.stderr.fileno(),
                    timeout=min(PATIENCE * part.seconds, self._end - time.monotonic()),
                )
            except subprocess.TimeoutExpired as error:
                return {"error": f"not done after {error.timeout:.1f} s"}
            if done.returncode or not file.exists():
                return {"error": f"its process ended with exit code {done.returncode}"}
            return json.loads(file.read_text(encoding="utf-8"))

    def _tell(self, line: str) -> None:
        self._say(f"[{self.seconds:4.0f} s] {line}")


def headline(figures: Figures) -> str:
    """Return the most important figures of a part in a line."""
    if "error" in figures:
        return f"FAILED: {figures['error']}"
    if "left_out" in figures:
        return f"left out: {figures['left_out']}"
    words = [text.format(figures[key]) for key, text in HEADLINES.items() if key in figures]
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


def ratios(figures: Mapping[str, Figures]) -> dict[str, float]:
    """Return how much faster ours is than Marian, and a variant of ours than ours."""
    speeds = {
        name: part["target_tokens_per_second"]
        for name, part in figures.items()
        if "padding_share" in part
    }
    pairs = []
    for name in speeds:
        network, _, contestant = name.partition("-")
        if contestant and network in speeds:
            pairs.append((network, name) if contestant == "marian" else (name, network))
    return {f"{one} / {other}": speeds[one] / speeds[other] for one, other in pairs}


def report(session: Session, parts: Sequence[Part], missing: Sequence[str]) -> dict[str, Any]:
    """Return everything that is known so far, as plain data; a part that is to come is None."""
    return {
        "machine": session.figures[MACHINE.name],
        "python": platform.python_version(),
        "missing_packages": list(missing),
        "seconds": session.seconds,
        "parts": {part.name: session.figures.get(part.name) for part in parts},
        "ratios": ratios(session.figures),
    }


def chosen(names: str | None) -> Sequence[Part]:
    """Return the parts of these names, in their order, or all of them.

    Raises:
        ValueError: there is no part of a name.
    """
    if names is None:
        return PARTS
    unknown = set(names.split(",")) - {part.name for part in PARTS}
    if unknown:
        there = ", ".join(part.name for part in PARTS)
        raise ValueError(
            f"--only: no such part; got {', '.join(sorted(unknown))}; choose from: {there}"
        )
    return [part for part in PARTS if part.name in names.split(",")]


def refuse(what: str) -> int:
    """Say in one line why there is nothing to do."""
    print(what, file=sys.stderr)
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
        "--minutes", type=float, default=10.0, help="for all of it (default: %(default)g)"
    )
    parser.add_argument(
        "--only", metavar="PART,...", help=f"of {', '.join(part.name for part in PARTS)}"
    )
    options = parser.parse_args(arguments)
    try:
        parts = chosen(options.only)
    except ValueError as error:
        return refuse(str(error))
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if "torch" in missing:
        return refuse(f"scripts/gpu: torch is not installed; got {sys.executable}; install it")
    quiet = Session(2 * MACHINE.seconds, say=lambda line: None)
    there = quiet.run(MACHINE)
    if not there.get("gpu"):
        return refuse(
            f"scripts/gpu: no CUDA device; got torch {there.get('torch', there.get('error'))}; "
            "run it on a machine with a GPU and a torch that sees it"
        )
    session = Session(60 * options.minutes - quiet.seconds, missing=missing)
    session.figures.update(quiet.figures)
    print(f"{there['gpu']}, torch {there['torch']}", file=sys.stderr)
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
    try:
        write(options.output, report(session, parts, missing))
    except TformerError as error:
        return refuse(str(error))
    for part in parts:
        session.run(part)
        write(options.output, report(session, parts, missing))
    for pair, ratio in ratios(session.figures).items():
        print(f"{pair}: {ratio:.2f}", file=sys.stderr)
    print(f"{session.seconds / 60:.1f} minutes; all figures: {options.output}", file=sys.stderr)
    return 1 if session.has_failed else 0


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole."""
    from tformer_cli.storage.atomic import write_text

    write_text(file, json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
