"""What a run folder and its checkpoints hold, and where each file is."""

import re
from dataclasses import dataclass
from pathlib import Path

from tformer_cli.errors import CheckpointError
from tformer_cli.storage.atomic import write_text

RUNS = Path("runs")
MODEL_FILE = "model.safetensors"
RAW_MODEL_FILE = "trained.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
CHECKSUMS_FILE = "SHA256SUMS"
# What a training goes on from, and what it takes to translate.
RESUME_FILES = (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE)
INFERENCE_FILES = (MODEL_FILE, STATE_FILE)
# Never a path, which would lead elsewhere.
CHECKPOINT_NAME = re.compile(r"\w[\w.-]{0,99}")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of one training run.

    config.yaml (resolved)   tokenizer/   checkpoints/step-000400/
    best, last (text files naming a checkpoint)   metrics.jsonl   samples/   eval/   train.log
    exports/ (of `translate --backend`)   .lock (held while a process trains here)
    """

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def origin_file(self) -> Path:
        """Says what the tokenizers beside it were made from."""
        return self.tokenizer / "origin.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def eval(self) -> Path:
        return self.path / "eval"

    @property
    def exports(self) -> Path:
        return self.path / "exports"

    @property
    def stores(self) -> Path:
        """Token stores, shared by all runs beside this one."""
        return self.path.parent / ".store"

    @property
    def log_file(self) -> Path:
        return self.path / "train.log"

    @property
    def lock_file(self) -> Path:
        return self.path / ".lock"

    @property
    def pointers(self) -> list[Path]:
        """Files that name checkpoints."""
        return [self.path / "best", self.path / "last"]

    @property
    def folders(self) -> list[Path]:
        """What a training fills."""
        return [self.checkpoints, self.tokenizer, self.samples, self.tensorboard, self.eval]

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint taken after `step` optimiser steps."""
        return self.checkpoints / f"step-{step:06d}"

    def step_checkpoints(self) -> list[Path]:
        """Return the checkpoints that training took, the newest last."""
        found = [x for x in self.checkpoints.glob("step-*") if x.name[5:].isdecimal()]
        return sorted(found, key=step_of)

    def point(self, name: str, checkpoint: Path) -> None:
        """Let `name` (`best` or `last`) stand for `checkpoint` from now on."""
        write_text(self.path / name, f"{checkpoint.name}\n")

    def pointed(self, name: str) -> Path | None:
        """Return the checkpoint that `name` stands for, or None if there is none yet.

        A file that is damaged stands for itself, which is no checkpoint.
        """
        file = self.path / name
        if not file.exists():
            return None
        if file.is_file():
            target = file.read_text(encoding="utf-8", errors="replace").strip()
            if CHECKPOINT_NAME.fullmatch(target):
                return self.checkpoints / target
        return file


def step_of(checkpoint: Path) -> int:
    """Return the optimiser steps after which a checkpoint was taken."""
    return int(checkpoint.name.removeprefix("step-"))


def run_of_config(config_file: Path, run: Path | None) -> RunDirectory:
    """Return the run folder that a config trains into.

    That is `run` where it is given, the folder around a run's own resolved config.yaml, and
    otherwise runs/NAME for NAME.yaml.
    """
    if run is not None:
        return RunDirectory(run)
    around = RunDirectory(config_file.parent)
    if config_file == around.config_file and around.tokenizer.is_dir():
        return around
    return RunDirectory(RUNS / config_file.stem)


def newest_run(runs: Path = RUNS) -> RunDirectory:
    """Return the run under `runs` whose last checkpoint is the newest.

    Raises:
        CheckpointError: no folder there has a checkpoint.
    """
    pointers = [pointer for pointer in runs.glob("*/last") if pointer.is_file()]
    if not pointers:
        raise CheckpointError(
            f"{runs}/",
            "no run with a checkpoint in it",
            remedy="train one with `tformer train CONFIG`, or name a run folder",
        )
    return RunDirectory(max(pointers, key=lambda pointer: pointer.stat().st_mtime).parent)
