"""A contestant of train.py in a process of its own, which works while it is asked.

Requests and answers are lines of JSON. Only one process works at any time, so that nobody slows
anybody down, and each has its own allocator, its own environment and its own peak memory.
"""

import contextlib
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from apart import command
from conditions import Condition, environment, report
from trainers.contestants import CONTESTANTS, CPU, Step, Task

from tformer_cli.config.load import load_config
from tformer_cli.corpus.pipeline import training_store
from tformer_cli.device import peak_memory, resolve_precision
from tformer_cli.errors import TrainingError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import load_tokenizers


@dataclass(frozen=True, slots=True)
class Measurement:
    """Some steps in a row.

    Attributes:
        steps: their number.
        num_tokens: as in `Step`.
        num_positions: likewise.
        seconds: wall-clock time, making the batches included.
        page_faults: pages that the system had to provide meanwhile.
        rss_mib: most memory held since the process began, in MiB.
    """

    steps: int
    num_tokens: int
    num_positions: int
    seconds: float
    page_faults: int
    rss_mib: float

    @property
    def tokens_per_second(self) -> float:
        """Target tokens a second."""
        return self.num_tokens / self.seconds


class Worker:
    """The end of the pipe that asks."""

    def __init__(
        self,
        name: str,
        precision: str,
        threads: int,
        run: RunDirectory,
        *,
        condition: Condition,
        warm_up: int,
    ) -> None:
        """Start a contestant; `answer` waits until it is ready, and says what it runs under.

        Args:
            name: a key of CONTESTANTS.
            precision: number format of its matrix products.
            threads: how many it has.
            run: holds the config and the tokenizers.
            condition: environment and allocator.
            warm_up: steps before the first turn; they build the optimiser's moments and fill the
                caches.
        """
        self.name = name
        self.process = subprocess.Popen(
            command(
                "trainers.worker.serve", name, precision, str(threads), str(run.path), str(warm_up)
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(condition),
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        # What a contestant has not read may still be in the pipe.
        with contextlib.suppress(BrokenPipeError), self.process:
            self.process.terminate()

    def ask(self, **request: float | None) -> dict[str, Any]:
        """Return what the contestant answers to a request.

        Raises:
            TrainingError: it has ended.
        """
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for the contestant.

        Raises:
            TrainingError: it has ended.
        """
        line = self.process.stdout.readline()
        if not line:
            raise TrainingError(
                f"the contestant {self.name}",
                "has ended before its time",
                got=f"exit code {self.process.wait()}",
                remedy="what it wrote stands above",
            )
        return json.loads(line)


def serve(name: str, precision: str, threads: str, folder: str, warm_up: str) -> None:
    """Be the end of the pipe that answers."""
    # Beforehand, for a heap with room enough answers like one that keeps what is freed.
    surroundings = report()
    torch.set_num_threads(int(threads))
    run = RunDirectory(Path(folder))
    config, tokenizers = load_config(run.config_file), load_tokenizers(run.tokenizer)
    store, _ = training_store(config.data, tokenizers)
    task = Task(config, tokenizers, store, resolve_precision(precision, CPU))
    contestant = CONTESTANTS[name](task)
    taken = contestant.steps(contestant.batches())
    measure(taken, steps=int(warm_up))
    print(json.dumps(surroundings), flush=True)
    for line in sys.stdin:
        match json.loads(line):
            case {"learn": steps}:
                answer = learn(name, task, steps)
            case {"steps": steps, "seconds": seconds}:
                answer = asdict(measure(taken, steps=steps, seconds=seconds))
        print(json.dumps(answer), flush=True)


def measure(
    taken: Iterator[Step], *, steps: int | None = None, seconds: float | None = None
) -> Measurement:
    """Let a contestant work for a number of steps, or until some seconds have passed."""
    faults, started = _page_faults(), time.perf_counter()
    done: list[Step] = []
    elapsed = 0.0
    while len(done) != steps and (seconds is None or elapsed < seconds):
        done.append(next(taken))
        elapsed = time.perf_counter() - started
    return Measurement(
        steps=len(done),
        num_tokens=sum(step.num_tokens for step in done),
        num_positions=sum(step.num_positions for step in done),
        seconds=elapsed,
        page_faults=_page_faults() - faults,
        rss_mib=peak_memory(CPU) / 2**20,
    )


def learn(name: str, task: Task, steps: int) -> dict[str, float]:
    """Train ours or Marian from its first weights to the end of a schedule, and validate it."""
    contestant = CONTESTANTS[name](task.lasting(steps))
    taken = itertools.islice(contestant.steps(contestant.batches()), steps)
    return {
        "num_tokens": sum(step.num_tokens for step in taken),
        "valid_loss": contestant.valid_loss(),
    }


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
