"""The harness of the benchmarks: processes of their own, rounds in turns, medians and tables.

As a script it calls a function of this folder: python harness.py MODULE.FUNCTION WORDS.
"""

import contextlib
import ctypes
import importlib
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, Self, get_args

from tformer_cli.errors import TformerError, TrainingError
from tformer_cli.process import ENVIRONMENT

# default: the variables of the user alone, and the C library's own allocator. tuned: the variables
# of tformer's command line, and the settings of `tune_allocator`, as variables that glibc reads, so
# that they hold for every baseline, whatever it imports.
Condition = Literal["default", "tuned"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
SETTINGS = ENVIRONMENT | ALLOCATOR
# Far above the size from which glibc maps memory by default.
PROBE_BYTES = 64 * 2**20
SAMPLE_SECONDS = 0.02
PROC = Path("/proc")


def environment(condition: Condition) -> dict[str, str]:
    """Return all environment variables of a process in a condition; those of the user stay."""
    users = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return users | (SETTINGS if condition == "tuned" else {})


def process_report() -> dict[str, str | bool | None]:
    """Return the settings in force in this process: variables, and whether malloc keeps memory."""
    return {name: os.environ.get(name) for name in SETTINGS} | {
        "keeps_freed_memory": _keeps_freed_memory()
    }


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _keeps_freed_memory() -> bool | None:
    """Return whether a large buffer comes from the heap; None where the C library cannot tell."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Mallinfo2
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = libc.mallinfo2().hblks
    buffer = libc.malloc(PROBE_BYTES)
    mapped = libc.mallinfo2().hblks - before
    libc.free(buffer)
    return bool(mapped == 0)


# ------------------------------------------------------------------------------------- processes


def command(call: str, *words: str) -> list[str]:
    """Return the command of a process that calls MODULE.FUNCTION with these words."""
    return [sys.executable, __file__, call, *words]


def subprocess_call(call: str, *words: str) -> Any:
    """Call a function in a process of its own, tuned; return the JSON that it prints.

    Raises:
        TrainingError: the process has failed.
    """
    done = subprocess.run(
        command(call, *words), env=environment("tuned"), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        code = f"exit code {done.returncode}"
        raise TrainingError(call, "has failed", got=code, remedy="see its output above")
    return json.loads(done.stdout)


def call_into_file(call: str, arguments: str, output: str) -> None:
    """Write what a function returns to a JSON file, or {"error": ...} where it raises."""
    module, _, function = call.rpartition(".")
    try:
        results = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    except Exception as error:
        traceback.print_exc()
        results = {"error": f"{type(error).__name__}: {error}"}
    Path(output).write_text(json.dumps(results), encoding="utf-8")


class Worker:
    """A baseline in a process of its own; requests and answers are lines of JSON.

    Only one worker works at any time. Each has its own allocator, environment and peak memory.
    """

    def __init__(self, name: str, call: str, *words: str, condition: Condition = "tuned") -> None:
        """Start a process that calls MODULE.FUNCTION, which ends in `serve`."""
        self.name = name
        self.process = subprocess.Popen(
            command(call, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(condition),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The pipe may hold a request that the process has not read.
        with contextlib.suppress(BrokenPipeError), self.process:
            self.process.terminate()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            TrainingError: the process has ended.
        """
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for an answer.

        Raises:
            TrainingError: the process has ended.
        """
        line = self.process.stdout.readline()
        if not line:
            raise TrainingError(
                f"the baseline {self.name}",
                "ended early",
                got=f"exit code {self.process.wait()}",
                remedy="see its output above",
            )
        return json.loads(line)


def serve(answer: Callable[[dict[str, Any]], object]) -> None:
    """Answer the requests of a `Worker` until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


# ---------------------------------------------------------------------------------------- memory


@contextlib.contextmanager
def watched(process: int) -> Iterator[list[int]]:
    """Yield a list to which the memory of a process and its children is appended in a thread."""
    samples = [family_memory(process)]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            samples.append(family_memory(process))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
        samples.append(family_memory(process))


def family_memory(process: int) -> int:
    """Return the memory of a process and all its descendants, in bytes.

    It is their proportional set size (PSS) on an otherwise idle machine: pages that several of them
    share count once. Mapped files (libraries) count for the process that has most of them, because
    the PSS of a library depends on the other programs that have it loaded.
    """
    own, mapped = 0, [0]
    for member in family(process):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = proc_bytes(PROC / str(member) / "smaps_rollup")
            own += fields["Pss_Anon"] + fields["Pss_Shmem"]
            mapped.append(proc_bytes(PROC / str(member) / "status").get("RssFile", 0))
    return own + max(mapped)


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


# ----------------------------------------------------------------------------- rounds and tables


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """Return the order of a round: every second one runs backwards."""
    return list(names)[:: 1 if number % 2 else -1]


def play_rounds(
    names: Iterable[str], rounds: int, turn: Callable[[str], float], unit: str
) -> list[dict[str, float]]:
    """Let all take turns; return the speed of each by round, in the order of the names."""
    names, played = list(names), []
    for number in range(1, rounds + 1):
        speeds = {name: turn(name) for name in in_turn(names, number)}
        shown = ", ".join(f"{name} {speed:,.1f}" for name, speed in speeds.items())
        log(f"round {number}/{rounds}: {shown} {unit}")
        played.append({name: speeds[name] for name in names})
    return played


def ratios(rounds: Sequence[Mapping[str, float]], name: str, other: str) -> list[float]:
    """Return by round how many times as fast one is as another."""
    return [speeds[name] / speeds[other] for speeds in rounds]


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


def main(call: str, *words: str) -> None:
    """Call a function."""
    module, _, function = call.rpartition(".")
    getattr(importlib.import_module(module), function)(*words)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except TformerError as error:
        log(str(error))
        sys.exit(error.exit_code)
