"""A contestant of quality.py in a process of its own, and the clock that runs beside it.

The process learns until it has no more to do, its optimiser steps have taken the time they are
given, or the end of the pipe on its standard input has gone: so it saves and leaves with those who
started it, however they ended.
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
from apart import command
from conditions import environment, report
from courses.contestants import CONTESTANTS, Contestant

from tformer_cli.config.load import dump_config, load_config
from tformer_cli.errors import Interrupted, TrainingError
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.run_directory import RunDirectory

# How often the clock is written down, and the time of the steps looked at.
TICK_SECONDS = 5.0


class Clock:
    """Wall-clock time of a training over all its sittings, what a kill undid included.

    Attributes:
        seconds: so far.
        checkpoints: when each of them was there, by name, to a tick.
    """

    def __init__(self, run: RunDirectory) -> None:
        """Take up what is known from earlier sittings."""
        self.run = run
        self.file = run.path / "clock.json"
        self.seconds = 0.0
        self.checkpoints: dict[str, float] = {}
        if self.file.is_file():
            known = json.loads(self.file.read_text(encoding="utf-8"))
            self.seconds, self.checkpoints = known["seconds"], known["checkpoints"]
        self._zero = time.monotonic() - self.seconds

    def tick(self) -> None:
        """Write down the time, and which checkpoints there are by now."""
        self.seconds = time.monotonic() - self._zero
        self.checkpoints = {
            checkpoint.name: self.at(checkpoint) for checkpoint in self.run.step_checkpoints()
        }
        content = {"seconds": self.seconds, "checkpoints": self.checkpoints}
        write_text(self.file, json.dumps(content, indent=2) + "\n")

    def at(self, checkpoint: Path) -> float:
        """Return when a checkpoint was there; the end of the clock for one that it did not see."""
        return self.checkpoints.get(checkpoint.name, self.seconds)


def train_apart(contestant: Contestant, *, seconds: float, threads: int) -> None:
    """Let a contestant learn in a process of its own, and see it saved whatever comes.

    Args:
        contestant: what is to be trained, or gone on with.
        seconds: of optimiser steps, over all sittings.
        threads: how many it has.

    Raises:
        TrainingError: it has failed.
    """
    config_file = contestant.run.path.with_suffix(".yaml")
    write_text(config_file, dump_config(contestant.config))
    words = [contestant.name, str(config_file), str(seconds), str(threads), *contestant.options]
    clock = Clock(contestant.run)
    process = subprocess.Popen(
        command("courses.worker.serve", *words),
        stdin=subprocess.PIPE,
        env=environment(contestant.condition),
        # Ctrl-C is for us to hear and to pass on.
        start_new_session=True,
    )
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TICK_SECONDS)
            clock.tick()
    finally:
        process.stdin.close()
        process.wait()
        clock.tick()
    if not contestant.is_over(seconds):
        raise TrainingError(
            str(contestant.run.path),
            "the training has ended before its time",
            got=f"exit code {process.returncode}",
            remedy="mend what it says above; the same command goes on",
        )


def serve(name: str, config_file: str, seconds: str, threads: str, *options: str) -> None:
    """Be the process that learns."""
    torch.set_num_threads(int(threads))
    run = RunDirectory(Path(config_file).with_suffix(""))
    contestant = CONTESTANTS[name](load_config(Path(config_file)), run, *map(float, options))
    surroundings = json.dumps(report(), indent=2)
    write_text(Path(config_file).with_suffix(".surroundings.json"), f"{surroundings}\n")
    watch = threading.Thread(target=leave_in_time, args=(contestant, float(seconds)), daemon=True)
    watch.start()
    with contextlib.suppress(Interrupted):
        contestant.train()


def leave_in_time(contestant: Contestant, seconds: float) -> None:
    """Ask this process to end when standard input has ended, or the time is up."""
    while not select.select([sys.stdin], [], [], TICK_SECONDS)[0]:
        state = contestant.state()
        if state is not None and state.seconds >= seconds:
            break
    os.kill(os.getpid(), signal.SIGTERM)
