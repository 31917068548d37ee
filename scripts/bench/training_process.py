"""A training of `training_runs` in a process of its own, and the time that it takes.

It trains until it has finished, its optimizer steps have taken their time, or the pipe on its
standard input is closed: it saves and ends with the process that started it, however that ended.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from harness import Worker, children_cpu_seconds
from training_runs import RUNS, TrainingRun

from tformer_cli.config.load import dump_config, load_config
from tformer_cli.errors import Interrupted, TrainingError
from tformer_cli.storage.atomic import write_json, write_text
from tformer_cli.storage.run_directory import RunDirectory

# How often the clock is saved, and the time of the steps checked.
TICK_SECONDS = 5.0


class Clock:
    """Time of a training over all its processes, steps lost by a kill included.

    Attributes:
        seconds: of wall-clock time, so far.
        cpu_seconds: of all its threads; of processes that have ended. Beside other work on the
            machine wall-clock time grows, and this hardly does.
        checkpoints: when each was there, by name, to a tick.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.file = run.path / "clock.json"
        known = json.loads(self.file.read_text(encoding="utf-8")) if self.file.is_file() else {}
        self.seconds: float = known.get("seconds", 0.0)
        self.cpu_seconds: float = known.get("cpu_seconds", 0.0)
        self.checkpoints: dict[str, float] = known.get("checkpoints", {})
        self._zero = time.monotonic() - self.seconds
        self._cpu_zero = children_cpu_seconds() - self.cpu_seconds

    def tick(self) -> None:
        """Save the time and the checkpoints that exist."""
        self.seconds = time.monotonic() - self._zero
        self.cpu_seconds = children_cpu_seconds() - self._cpu_zero
        self.checkpoints = {
            checkpoint.name: self.at(checkpoint) for checkpoint in self.run.step_checkpoints()
        }
        names = ("seconds", "cpu_seconds", "checkpoints")
        write_json(self.file, {name: getattr(self, name) for name in names})

    def at(self, checkpoint: Path) -> float:
        """Return when a checkpoint was there; the latest time for one that no tick saw."""
        return self.checkpoints.get(checkpoint.name, self.seconds)


def train_in_process(training: TrainingRun, *, threads: int, seconds: float = float("inf")) -> None:
    """Train in a process of its own, which always saves, until its steps have taken `seconds`."""
    config_file = training.run.path.with_suffix(".yaml")
    write_text(config_file, dump_config(training.config))
    clock = Clock(training.run)
    process = Worker(
        "training_process.serve_run",
        condition=training.condition,
        name=training.name,
        config_file=str(config_file),
        seconds=seconds,
        threads=threads,
        options=training.options,
    ).process
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TICK_SECONDS)
            clock.tick()
    finally:
        # It saves and ends when its standard input does.
        process.stdin.close()
        process.wait()
        process.stdout.close()
        clock.tick()
    if not training.is_over(seconds):
        raise TrainingError(
            str(training.run.path),
            "the training ended early",
            got=f"exit code {process.returncode}",
            remedy="fix what is reported above; re-run the command to resume",
        )


def serve_run(
    name: str, config_file: str, seconds: float, threads: int, options: dict[str, float]
) -> None:
    """Train in this process."""
    torch.set_num_threads(threads)
    file = Path(config_file)
    training = RUNS[name](load_config(file), RunDirectory(file.with_suffix("")), **options)
    watch = threading.Thread(target=end_in_time, args=(training, seconds), daemon=True)
    watch.start()
    with contextlib.suppress(Interrupted):
        training.train()


def end_in_time(training: TrainingRun, seconds: float) -> None:
    """Send SIGTERM to this process when standard input has ended, or the time is over."""
    while not select.select([sys.stdin], [], [], TICK_SECONDS)[0]:
        progress = training.progress()
        if progress is not None and progress.seconds >= seconds:
            break
    os.kill(os.getpid(), signal.SIGTERM)
