"""What a run folder holds, where each file is, and how files are written whole."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tformer_cli.errors import CheckpointError, StorageError, UsageError
from tformer_cli.storage.staging import NEW, OLD, staging, sweep, sweep_folder

RUNS = Path("runs")
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


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let whatever the system refuses in the meantime be said of `path`.

    Raises:
        StorageError: the disk is full or broken, the folder has gone, permission is lacking.
    """
    try:
        yield
    except OSError as error:
        raise StorageError.of(error, str(path)) from error


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, else it goes.

    A reader sees the old file or the new one, never a part, whenever the machine stops. A link
    stays, and what it points at is replaced. A pipe or a device takes the bytes as they come.

    Raises:
        StorageError: the system does not let it be written.
    """
    with writing(path):
        if path.exists() and not path.is_file():
            yield path
            return
        path = Path(os.path.realpath(path))
        make_directory(path.parent)
        with staging(path) as directory:
            temporary = directory / NEW
            yield temporary
            _sync_file(temporary)
            temporary.replace(path)
            sync_directory(path.parent)


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it replaces `path`, else it goes.

    A link stays, and what it points at is replaced. Between two moves a kill leaves `path` without
    its name, which `put_back` gives back to what was there.

    Raises:
        StorageError: the system does not let it be written.
    """
    with _temporary_directory(path) as (path, temporary):
        yield temporary
        _sync_tree(temporary)
        if path.is_dir():
            path.rename(temporary.with_name(OLD))
        temporary.rename(path)
        sync_directory(path.parent)


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it is called `path`, else it goes.

    Nothing is replaced, neither what is there at the beginning nor what appears in the meantime.

    Raises:
        UsageError: something is there.
        StorageError: the system does not let it be written.
    """
    check_absent(path)
    with _temporary_directory(path) as (path, temporary):
        yield temporary
        _sync_tree(temporary)
        # The system replaces an empty folder, and no other.
        check_absent(path)
        try:
            temporary.rename(path)
        except OSError:
            check_absent(path)
            raise
        sync_directory(path.parent)


def check_absent(path: Path) -> None:
    """Refuse a name that something has already; what killed writers of it left goes.

    Raises:
        UsageError: something is there.
    """
    sweep(path)
    if path.exists():
        raise UsageError(str(path), "is there already", remedy="remove it, or name another")


@contextlib.contextmanager
def _temporary_directory(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield `path` without links, and a new folder in its staging directory."""
    with writing(path):
        path = Path(os.path.realpath(path))
        make_directory(path.parent)
        with staging(path) as directory:
            temporary = directory / NEW
            temporary.mkdir()
            yield path, temporary


def put_back(folder: Path) -> None:
    """Remove what killed writers left in a folder; what they were about to replace is there again.

    Raises:
        StorageError: the system does not let it be read.
    """
    with writing(folder):
        sweep_folder(folder)


def empty_directory(path: Path) -> None:
    """Remove a folder, if there is one; a link to a folder stays, and only what is in it goes.

    Raises:
        StorageError: something in it cannot be removed.
    """
    if not path.is_dir():
        return
    with writing(path):
        if not path.is_symlink():
            shutil.rmtree(path)
            return
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            else:
                child.unlink()


def remove_directory(path: Path) -> None:
    """Remove a folder, if there is one; under its own name it is never there in part.

    One that is write-protected stays.

    Raises:
        StorageError: the system does not let it be moved.
    """
    if path.is_dir():
        with writing(path), contextlib.suppress(PermissionError), staging(path) as directory:
            path.rename(directory / OLD)


def make_directory(path: Path) -> None:
    """Create a folder and those around it, if there are none; their names survive a power cut.

    Raises:
        OSError: the system does not let one be created.
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file whole.

    Raises:
        StorageError: the system does not let it be written.
    """
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: object) -> None:
    """Write data for another program into a file, as a whole.

    Raises:
        StorageError: the system does not let it be written.
    """
    write_text(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_file(path: Path) -> None:
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _sync_tree(folder: Path) -> None:
    """Make a folder and all that is in it survive a power cut."""
    for name, _, files in os.walk(folder):
        for file in files:
            _sync_file(Path(name, file))
        sync_directory(Path(name))
