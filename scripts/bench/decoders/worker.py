"""The end of the pipe that asks a contestant of decode.py, and how much memory it has taken.

Only one contestant works at any time, so that nobody slows anybody down, and each has its own
environment and its own memory.
"""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from apart import command
from conditions import environment
from decoders.contestants import CONTESTANTS, Setting, Task
from trainers import worker

# What is done for the first time takes longer: shapes of batches above all.
WARM_UP_LINES = 64
SAMPLE_SECONDS = 0.02
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Turn:
    """Some lines translated.

    Attributes:
        seconds: wall-clock time, without loading.
        texts: the translations.
    """

    seconds: float
    texts: list[str]

    @property
    def sentences_per_second(self) -> float:
        """Lines a second."""
        return len(self.texts) / self.seconds


class Worker(worker.Worker):
    """A contestant in a process of its own."""

    def __init__(self, name: str, task: Task) -> None:
        """Start a contestant; `use` must come next.

        Args:
            name: a key of CONTESTANTS.
            task: what to translate with, and how.
        """
        self.name = name
        self.process = subprocess.Popen(
            command("decoders.contestants.serve", name, json.dumps(asdict(task))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(task.condition),
        )

    def use(self, setting: Setting, lines: Sequence[str]) -> None:
        """Let the contestant load its model for a setting, and warm up on some lines.

        Raises:
            TrainingError: it has ended.
        """
        self.ask(use=setting)
        self.turn(lines[:WARM_UP_LINES])

    def turn(self, lines: Sequence[str]) -> Turn:
        """Let the contestant translate some lines.

        Raises:
            TrainingError: it has ended.
        """
        return Turn(**self.ask(lines=lines))

    def surroundings(self) -> dict[str, str | bool | None]:
        """Return the environment and the allocator that the contestant has.

        Raises:
            TrainingError: it has ended.
        """
        return self.ask(report=True)

    def watched_turn(self, lines: Sequence[str]) -> tuple[Turn, int]:
        """Let the contestant translate some lines; return the most memory as well, in bytes.

        Watching takes time, so this turn's is no measurement.

        Raises:
            TrainingError: it has ended.
        """
        with watched(self.process.pid) as samples:
            turn = self.turn(lines)
        return turn, max(samples)


def speeds_by_setting(name: str, task: Task, lines: Sequence[str]) -> dict[Setting, float]:
    """Return the sentences a second in each setting of a contestant, in the better of two turns.

    Its process ends with that: what the other settings have taken would count as its memory.

    Raises:
        TrainingError: it has ended too early.
    """
    speeds = {}
    with Worker(name, task) as worker:
        for setting in CONTESTANTS[name].settings(task):
            worker.use(setting, lines)
            turns = [worker.turn(lines) for _ in range(2)]
            speeds[setting] = max(turn.sentences_per_second for turn in turns)
    return speeds


@contextlib.contextmanager
def watched(process: int) -> Iterator[list[int]]:
    """Yield a list that the memory of a process and its children is added to all the time."""
    samples = [family_memory(process)]
    over = threading.Event()

    def look() -> None:
        while not over.wait(SAMPLE_SECONDS):
            samples.append(family_memory(process))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
        samples.append(family_memory(process))


def family_memory(process: int) -> int:
    """Return the memory that a process and all its children hold, in bytes.

    It is their proportional set size (PSS) as it is when nobody else runs: pages that several of
    them share count once. Mapped files, the libraries above all, are those of the process that has
    most of them, because the PSS of a library depends on how many others have it loaded too.
    """
    own, mapped = 0, [0]
    for member in family(process):
        # It may have gone in the meantime.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            held = _fields(PROC / str(member) / "smaps_rollup")
            own += held["Pss_Anon"] + held["Pss_Shmem"]
            mapped.append(_fields(PROC / str(member) / "status").get("RssFile", 0))
    return own + max(mapped)


def family(process: int) -> list[int]:
    """Return a process and all that have come from it."""
    members = [process]
    for member in members:
        for children in (PROC / str(member)).glob("task/*/children"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                members += map(int, children.read_text().split())
    return members


def _fields(file: Path) -> dict[str, int]:
    """Return the lines of a file under /proc that are in kB, in bytes."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {
        words[0].rstrip(":"): int(words[1]) * 2**10
        for words in lines
        if len(words) == 3 and words[2] == "kB"
    }
