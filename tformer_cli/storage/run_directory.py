"""Run folders and checkpoints: which files they hold, and where.

A checkpoint is a folder of safetensors and JSON files; nothing in it is ever unpickled:

    model.safetensors       weights for inference; an average, if the training keeps one
    trained.safetensors     beside an average: the weights that the optimizer updates
    optimizer.safetensors   optimizer state; absent from an average of checkpoints, which translates
                            but cannot resume
    state.json              progress of the training
    SHA256SUMS              checksums of the other files, written last, for `sha256sum --check` too
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
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
EXPORT_FILE = "model.bin"  # of CTranslate2
# A name in a pointer file, never a path, which would lead elsewhere.
CHECKPOINT_NAME = re.compile(r"\w[\w.-]{0,99}")


@dataclass(init=False, unsafe_hash=True)
class RunDirectory:
    """The folder of a training run."""

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"  # resolved
        self.tokenizer = path / "tokenizer"
        self.origin_file = self.tokenizer / "origin.json"  # what the tokenizers were built from
        self.checkpoints = path / "checkpoints"
        self.pointers = [path / "best", path / "last"]  # text files that name a checkpoint
        self.metrics_file = path / "metrics.jsonl"
        self.log_file = path / "train.log"
        self.samples = path / "samples"
        self.tensorboard = path / "tensorboard"
        self.wandb = path / "wandb"  # by that package
        self.eval = path / "eval"
        self.confidence_file = path / "confidence.json"  # by `tformer calibrate`
        self.exports = path / "exports"  # for `translate --backend`
        self.lock_file = path / ".lock"  # held while a process trains here
        # Token stores, shared by the runs beside this one. For `.`, pathlib's parent is `.` itself.
        self.stores = Path(os.path.normpath(path / ".." / ".store"))
        # The folders that a training writes.
        self.folders = [
            *(self.checkpoints, self.tokenizer, self.samples),
            *(self.tensorboard, self.wandb, self.eval),
        ]

    def checkpoint(self, step: int) -> Path:
        """Return the checkpoint folder of an optimizer step."""
        return self.checkpoints / f"step-{step:06d}"

    def step_checkpoints(self) -> list[Path]:
        """Return the checkpoints that training saved, the newest last."""
        folders = [x for x in self.checkpoints.glob("step-*") if x.name[5:].isdecimal()]
        return sorted(folders, key=step_of)

    def point(self, name: str, checkpoint: Path) -> None:
        """Let the pointer file `name` (`best` or `last`) name a checkpoint."""
        write_text(self.path / name, f"{checkpoint.name}\n")

    def pointed(self, name: str) -> Path | None:
        """Return the checkpoint that a pointer file names, or None without such a file.

        Of a damaged file its own path is returned, which is no checkpoint.
        """
        file = self.path / name
        if not file.exists():
            return None
        if file.is_file():
            target = file.read_text(encoding="utf-8", errors="replace").strip()
            if CHECKPOINT_NAME.fullmatch(target):
                return self.checkpoints / target
        return file


def is_converted(folder: Path) -> bool:
    """Return whether another program wrote a folder for CTranslate2; our exports have a config."""
    return (folder / EXPORT_FILE).is_file() and not RunDirectory(folder).config_file.exists()


def named_twice(folders: Iterable[str | os.PathLike[str]]) -> str:
    """Return the names of folders that come twice, by whatever paths; empty if all differ."""
    names = [str(folder) for folder in folders]
    times = Counter(map(os.path.realpath, names))
    return " and ".join(dict.fromkeys(name for name in names if times[os.path.realpath(name)] > 1))


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step at which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix("step-"))


def run_of_config(config_file: Path, run: Path | None) -> RunDirectory:
    """Return the run folder that a config trains into: `run` if given.

    Else the folder of the config, if that is the config.yaml of a run; else runs/NAME of NAME.yaml.
    """
    if run is not None:
        return RunDirectory(run)
    folder = RunDirectory(config_file.parent)
    if config_file == folder.config_file and folder.tokenizer.is_dir():
        return folder
    return RunDirectory(RUNS / config_file.stem)


def newest_run(runs: Path = RUNS) -> RunDirectory:
    """Return the run under `runs` whose last checkpoint is the newest."""
    pointers = [pointer for pointer in runs.glob("*/last") if pointer.is_file()]
    if not pointers:
        remedy = "train one with `tformer train CONFIG`, or name a run folder"
        raise CheckpointError(f"{runs}/", "no run with a checkpoint in it", remedy=remedy)
    return RunDirectory(max(pointers, key=lambda pointer: pointer.stat().st_mtime).parent)
