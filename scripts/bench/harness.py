"""The harness of the benchmarks: processes of their own, rounds in turns, medians and tables.

As a script it calls a function of this folder: python harness.py MODULE.FUNCTION JSON.
"""

import contextlib
import importlib
import json
import os
import resource
import select
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Self

from tformer_cli.errors import TrainingError
from tformer_cli.process import ENVIRONMENT

# What every baseline has: the variables of tformer's command line, and the settings of
# `tune_allocator`, as variables that glibc reads, so that they hold whatever it imports.
SETTINGS = ENVIRONMENT | {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
SAMPLE_SECONDS = 0.02
ROOT = Path(__file__).resolve().parents[2]
PROC = Path("/proc")
# A process that has just ended has no files there.
GONE = (FileNotFoundError, ProcessLookupError)


# ------------------------------------------------------------------------------------- processes


class Worker:
    """A function of this folder in a process of its own; all that passes is lines of JSON.

    The function returns its result, or a function that answers requests. What it prints goes to
    standard error. Each process has its own allocator, environment and peak memory; it ends when
    its standard input does, and Ctrl-C does not reach it.
    """

    def __init__(self, call: str, **arguments: Any) -> None:
        """Start a process that calls MODULE.FUNCTION."""
        # What failed, in messages: the baseline where there are several.
        self.name = arguments.get("name", call)
        self.process = subprocess.Popen(
            [sys.executable, __file__, call, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | SETTINGS,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The pipe may hold a request that the process has not read.
        with contextlib.suppress(BrokenPipeError), self.process:
            self.process.terminate()

    def ask(self, **request: Any) -> Any:
        """Return the answer to a request."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.result()

    def result(self, seconds: float | None = None) -> Any:
        """Wait for a result, for so many seconds at most."""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            self.process.kill()
            raise TrainingError(self.name, f"not done after {seconds:.1f} s")
        line = self.process.stdout.readline()
        answer = json.loads(line or "{}")
        if "result" not in answer:
            error = answer.get("error") or f"exit code {self.process.wait()}"
            raise TrainingError(self.name, "has failed", got=error, remedy="see its output above")
        return answer["result"]


def run_in_process(call: str, *, seconds: float | None = None, **arguments: Any) -> Any:
    """Return the result of a function, called in a process of its own as by `Worker`."""
    with Worker(call, **arguments) as worker:
        return worker.result(seconds)


def main(call: str, arguments: str) -> None:
    """Call a function; write its result, or its answers to requests, to standard output."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, _, function = call.rpartition(".")
    try:
        result = getattr(importlib.import_module(module), function)(**json.loads(arguments))
        for answer in map(result, map(json.loads, sys.stdin)) if callable(result) else [result]:
            print(json.dumps({"result": answer}), file=output)
    except Exception as error:
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=output)
        sys.exit(1)


class Command:
    """A command that has been run to its end: its time, memory and messages."""

    def __init__(self, *words: str, memory: Callable[[int], int] | None = None) -> None:
        """Run a command; `memory` of its process id is watched, `family_memory` by default.

        Raises:
            TrainingError: it has failed.
        """
        started, before = time.perf_counter(), children_cpu_seconds()
        self.lines: list[tuple[float, str]] = []  # of standard error, with the time of each
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with (
            subprocess.Popen(words, text=True, **pipes) as process,
            watched(process.pid, memory or family_memory) as samples,
        ):
            for line in process.stderr:
                self.lines.append((time.perf_counter() - started, line))
            code = process.wait()
        self.seconds = time.perf_counter() - started
        self.cpu_seconds = children_cpu_seconds() - before
        self.peak_mib = max(samples) / 2**20
        if code:
            last = self.lines[-1][1].strip() if self.lines else f"exit code {code}"
            raise TrainingError(" ".join(words[1:6]), "has failed", got=last)

    def first(self, beginning: str) -> float:
        """Return the seconds after which the first message came that begins so."""
        return next(seconds for seconds, line in self.lines if line.startswith(beginning))


# ----------------------------------------------------------------------- memory, processor time


def children_cpu_seconds() -> float:
    """Return the processor time of the child processes that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def family_memory(process: int) -> int:
    """Return the memory of a process and all its descendants, in bytes.

    Mapped files (libraries) count for the process that has most of them, because the share of a
    library depends on the other programs that have it loaded.
    """
    mapped = [proc_bytes(member).get("RssFile", 0) for member in family(process)]
    return own_memory(process) + max(mapped)


def own_memory(process: int) -> int:
    """Return the memory of a process and all its descendants without mapped files, in bytes.

    It is their proportional set size (PSS) on an otherwise idle machine: pages that several of them
    share count once.
    """
    rollups = [proc_bytes(member, "smaps_rollup") for member in family(process)]
    return sum(fields.get(key, 0) for fields in rollups for key in ("Pss_Anon", "Pss_Shmem"))


def family(process: int) -> list[int]:
    """Return a process and all its descendants."""
    members = [process]
    for member in members:
        for children in (PROC / str(member)).glob("task/*/children"):
            with contextlib.suppress(*GONE):
                members += map(int, children.read_text().split())
    return members


def proc_bytes(process: int | str = "self", name: str = "status") -> dict[str, int]:
    """Return the fields of a file of a process that are in kB, in bytes; none if it has ended."""
    lines: list[list[str]] = []
    with contextlib.suppress(*GONE):
        text = (PROC / str(process) / name).read_text(encoding="utf-8")
        lines = [line.split() for line in text.splitlines()]
    return {
        words[0].rstrip(":"): int(words[1]) * 2**10
        for words in lines
        if len(words) == 3 and words[2] == "kB"
    }


@contextlib.contextmanager
def watched(process: int, memory: Callable[[int], int] = family_memory) -> Iterator[list[int]]:
    """Yield a list to which the memory of a process and its children is appended in a thread."""
    samples = [memory(process)]
    stop = threading.Event()

    def sample() -> None:
        pause = SAMPLE_SECONDS
        while not stop.wait(pause):
            started = time.perf_counter()
            samples.append(memory(process))
            # The kernel walks all pages for it, and the process waits meanwhile.
            pause = max(SAMPLE_SECONDS, 20 * (time.perf_counter() - started))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
        samples.append(memory(process))


# ----------------------------------------------------------------------------- rounds and tables


def play_rounds(
    names: Iterable[str], rounds: int, turn: Callable[[str], float], unit: str
) -> dict[str, list[float]]:
    """Let all take turns, in every second round backwards; return the speeds of each by round."""
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        order = list(speeds)[:: 1 if number % 2 else -1]
        for name in order:
            speeds[name].append(turn(name))
        shown = ", ".join(f"{name} {speeds[name][-1]:,.1f}" for name in order)
        log(f"round {number}/{rounds}: {shown} {unit}")
    return speeds


def ratios(speeds: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return by round how many times as fast one is as another."""
    return [speed / other for speed, other in zip(speeds, others, strict=True)]


def times_as_fast(
    speeds: Mapping[str, Sequence[float]], titles: Mapping[str, str]
) -> dict[str, str]:
    """Return a row of a table for each baseline but the first, ours: how much faster ours is."""
    first, *others = speeds
    return {
        f"times as fast tformer is as {titles[name]}": median_and_range(
            ratios(speeds[first], speeds[name])
        )
        for name in others
    }


def two_digits(number: float) -> str:
    """Return a number rounded to two significant digits."""
    if number == 0:
        return "0"
    rounded = float(f"{number:.1e}")
    # 9.96 becomes 10, with one decimal less.
    decimals = max(0, 1 - int(f"{rounded:e}".partition("e")[2]))
    return f"{rounded:,.{decimals}f}"


def median_and_range(numbers: Sequence[float]) -> str:
    """Return the median of some rounds, with minimum and maximum."""
    least, most = two_digits(min(numbers)), two_digits(max(numbers))
    return f"{two_digits(median(numbers))} ({least}-{most})"


def mean_and_deviation(numbers: Sequence[float]) -> str:
    """Return the mean of some seeds, with the standard deviation where there are several."""
    mean = f"{fmean(numbers):.2f}"
    return mean if len(numbers) == 1 else f"{mean} ± {stdev(numbers):.2f}"


def columns_table(corner: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return a table of columns, each with its cells by row; all rows of all columns."""
    rows = dict.fromkeys(row for cells in columns.values() for row in cells)
    body = ([row, *(cells.get(row, "") for cells in columns.values())] for row in rows)
    return aligned([[corner, *columns], *body])


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a table: first column to the left, the others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        f"{title:<{widths[0]}}"
        + "".join(f"{cell:>{width + 3}}" for cell, width in zip(cells, widths[1:], strict=True))
        for title, *cells in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def log(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
