"""The harness of the benchmarks: processes of their own, rounds in turns, medians and tables.

As a script it calls a function of this folder: python harness.py MODULE.FUNCTION JSON.
"""

import contextlib
import importlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal, Self, get_args

from tformer_cli.errors import TrainingError
from tformer_cli.process import ENVIRONMENT

# default: the variables of the user alone, and the C library's own allocator. tuned: the variables
# of tformer's command line, and the settings of `tune_allocator`, as variables that glibc reads, so
# that they hold for every baseline, whatever it imports.
Condition = Literal["default", "tuned"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
SETTINGS = ENVIRONMENT | ALLOCATOR
SAMPLE_SECONDS = 0.02
PROC = Path("/proc")


def environment(condition: Condition) -> dict[str, str]:
    """Return all environment variables of a process in a condition; those of the user stay."""
    users = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return users | (SETTINGS if condition == "tuned" else {})


# ------------------------------------------------------------------------------------- processes


class Worker:
    """A function of this folder in a process of its own; all that passes is lines of JSON.

    The function returns its result, or a function that answers requests. What it prints goes to
    standard error. Each process has its own allocator, environment and peak memory; it ends when
    its standard input does, and Ctrl-C does not reach it.
    """

    def __init__(self, call: str, *, condition: Condition = "tuned", **arguments: Any) -> None:
        """Start a process that calls MODULE.FUNCTION."""
        # What failed, in messages: the baseline where there are several.
        self.name = arguments.get("name", call)
        self.process = subprocess.Popen(
            [sys.executable, __file__, call, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(condition),
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

    def result(self) -> Any:
        """Wait for a result."""
        line = self.process.stdout.readline()
        answer = json.loads(line or "{}")
        if "result" not in answer:
            error = answer.get("error") or f"exit code {self.process.wait()}"
            remedy = "see its output above"
            raise TrainingError(self.name, "has failed", got=error, remedy=remedy)
        return answer["result"]


def run_in_process(call: str, *, seconds: float | None = None, **arguments: Any) -> Any:
    """Return the result of a function, called in a process of its own as by `Worker`."""
    with Worker(call, **arguments) as worker:
        timer = threading.Timer(seconds or threading.TIMEOUT_MAX, worker.process.kill)
        timer.daemon = True
        timer.start()
        try:
            return worker.result()
        except TrainingError:
            if timer.finished.is_set():
                raise TrainingError(call, f"not done after {seconds:.1f} s") from None
            raise
        finally:
            timer.cancel()


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
    mapped = [0]
    for member in family(process):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            mapped.append(proc_bytes(PROC / str(member) / "status").get("RssFile", 0))
    return own_memory(process) + max(mapped)


def own_memory(process: int) -> int:
    """Return the memory of a process and all its descendants without mapped files, in bytes.

    It is their proportional set size (PSS) on an otherwise idle machine: pages that several of them
    share count once.
    """
    own = 0
    for member in family(process):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = proc_bytes(PROC / str(member) / "smaps_rollup")
            own += fields["Pss_Anon"] + fields["Pss_Shmem"]
    return own


def family(process: int) -> list[int]:
    """Return a process and all its descendants."""
    members = [process]
    for member in members:
        for children in (PROC / str(member)).glob("task/*/children"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                members += map(int, children.read_text().split())
    return members


def proc_bytes(file: Path = PROC / "self" / "status") -> dict[str, int]:
    """Return the fields of a file under /proc that are in kB, in bytes."""
    lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
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


def seconds_of(call: Callable[[], object]) -> float:
    """Return the wall-clock time of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def time_ratio(call: Callable[[], object], other: Callable[[], object], rounds: int) -> float:
    """Return the time of a call as a multiple of another's: the median of rounds in turns."""
    pairs = [(seconds_of(call), seconds_of(other)) for _ in range(rounds + 1)]
    # The first round warms up.
    return median(one / two for one, two in pairs[1:])


def ratios(speeds: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return by round how many times as fast one is as another."""
    return [speed / other for speed, other in zip(speeds, others, strict=True)]


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


def mean_and_deviation(numbers: Sequence[float], form: str = ".2f") -> str:
    """Return the mean of some seeds, with the standard deviation where there are several."""
    mean = format(fmean(numbers), form)
    return mean if len(numbers) == 1 else f"{mean} ± {stdev(numbers):{form}}"


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


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """Return so many items at equal distances, or all where there are fewer."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def log(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
