"""Run folders and checkpoints: which files they hold, and where.

A checkpoint is a folder of safetensors and JSON files; nothing in it is ever unpickled:

    model.safetensors       weights for inference; the moving average (EMA), if the training has one
    trained.safetensors     with an EMA: the weights that the optimizer updates
    optimizer.safetensors   optimizer state; absent from an average of checkpoints, which translates
                            but cannot resume
    state.json              progress of the training
    SHA256SUMS              checksums of the other files, written last, for `sha256sum --check` too
"""

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
# A name in a pointer file, never a path, which would lead elsewhere.
CHECKPOINT_NAME = re.compile(r"\w[\w.-]{0,99}")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of a training run.

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
        """Says what the tokenizers were built from."""
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
        """Files that name a checkpoint."""
        return [self.path / "best", self.path / "last"]

    @property
    def folders(self) -> list[Path]:
        """The folders that a training writes."""
        return [self.checkpoints, self.tokenizer, self.samples, self.tensorboard, self.eval]

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


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step at which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix("step-"))


def run_of_config(config_file: Path, run: Path | None) -> RunDirectory:
    """Return the run folder that a config trains into.

    That is `run` if given; else the folder of `config_file` if that is the resolved config.yaml of
    a run; else runs/NAME of NAME.yaml.
    """
    if run is not None:
        return RunDirectory(run)
    folder = RunDirectory(config_file.parent)
    if config_file == folder.config_file and folder.tokenizer.is_dir():
        return folder
    return RunDirectory(RUNS / config_file.stem)


def newest_run(runs: Path = RUNS) -> RunDirectory:
    """Return the run under `runs` whose last checkpoint is the newest.

    Raises:
        CheckpointError: no run there has a checkpoint.
    """
    pointers = [pointer for pointer in runs.glob("*/last") if pointer.is_file()]
    if not pointers:
        raise CheckpointError(
            f"{runs}/",
            "no run with a checkpoint in it",
            remedy="train one with `tformer train CONFIG`, or name a run folder",
        )
    return RunDirectory(max(pointers, key=lambda pointer: pointer.stat().st_mtime).parent)
