"""A file that is written part by part and resumed after a kill."""

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tformer_cli.errors import DataError, UsageError
from tformer_cli.storage.atomic import (
    make_directory,
    open_atomic,
    read_json,
    recover_interrupted_writes,
    storage_errors,
    sync,
    write_json,
)
from tformer_cli.storage.lock import lock_file

READ_BYTES = 1 << 20
REMEDY = "remove it, or name another file"


class PartialFile:
    """The beginning of FILE in FILE.partial, with its length and its inputs in FILE.partial.json.

    Data is fsynced before the record counts it, so after a crash everything past the recorded
    length is discarded. `num_lines` counts the input lines whose output is in the file.
    """

    def __init__(self, path: Path, file: BinaryIO, made_from: Mapping[str, object]) -> None:
        """Take FILE.partial, opened and locked; `resume_or_start` comes first."""
        self.path = path
        self.record_file = path.with_name(f"{path.name}.json")
        self.num_lines = 0
        self._file = file
        self._made_from: dict[str, object] = json.loads(json.dumps(made_from, default=str))
        self._digest = hashlib.sha256()
        self._num_bytes = 0

    def resume_or_start(self) -> None:
        """Continue behind the recorded content, or start if the file is empty."""
        with storage_errors(self.path):
            recover_interrupted_writes(self.path.parent, self.record_file.name)
            if os.fstat(self._file.fileno()).st_size > 0:
                self._resume()
            else:
                self._save_record()

    def add(self, text: str, num_lines: int) -> None:
        """Append the output of some more input lines."""
        content = text.encode("utf-8")
        with storage_errors(self.path):
            self._file.write(content)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._digest.update(content)
            self._num_bytes += len(content)
            self.num_lines += num_lines
            self._save_record()

    def _save_record(self) -> None:
        record = {
            "made_from": self._made_from,
            "num_lines": self.num_lines,
            "num_bytes": self._num_bytes,
            "sha256": self._digest.hexdigest(),
        }
        write_json(self.record_file, record)

    def _resume(self) -> None:
        damaged = DataError(str(self.path), "is not what was written", remedy=REMEDY)
        try:
            record = read_json(self.record_file)
            made_from = dict(record["made_from"])
            self.num_lines, self._num_bytes = int(record["num_lines"]), int(record["num_bytes"])
            digest = record["sha256"]
        except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError):
            raise damaged from None
        others = [
            name
            for name in self._made_from | made_from
            if made_from.get(name) != self._made_from.get(name)
        ]
        if others:
            what = "was begun from something else"
            got = f"different {', '.join(others)}"
            raise UsageError(str(self.path), what, got=got, remedy=REMEDY)
        num_left = self._num_bytes
        while num_left > 0 and (content := self._file.read(min(num_left, READ_BYTES))):
            self._digest.update(content)
            num_left -= len(content)
        if self._digest.hexdigest() != digest:
            raise damaged
        self._file.truncate(self._num_bytes)
        self._file.seek(self._num_bytes)


@contextlib.contextmanager
def partial_file(path: Path, made_from: Mapping[str, object]) -> Iterator[PartialFile]:
    """Open FILE.partial, new or left by an interruption; on success it replaces FILE.

    `path` is FILE; of a symbolic link the target is written. The permissions of a FILE that exists
    stay, and FILE.partial is as private. FILE.gz.partial is plain text, and FILE.gz is made of it
    at the end. `made_from` is everything that determines the content, by name; it is compared as
    JSON. A partial file that was made from something else, was changed since, or is being written
    is refused.
    """
    if path.exists() and not path.is_file():
        raise UsageError(str(path), "is not a regular file", remedy="name a file")
    target = Path(os.path.realpath(path))
    partial_path = target.with_name(f"{target.name}.partial")
    with storage_errors(partial_path):
        make_directory(target.parent)
    with lock_file(partial_path) as (descriptor, was_free):
        if not was_free:
            what = "another process is writing it"
            raise UsageError(str(partial_path), what, remedy="wait until it is done")
        _keep_private(target, partial_path)
        file = open(descriptor, "r+b", closefd=False)  # noqa: SIM115 - closed below
        try:
            partial = PartialFile(partial_path, file, made_from)
            partial.resume_or_start()
            yield partial
            with storage_errors(path):
                if path.suffix == ".gz":
                    _compress(partial_path, path)
                else:
                    if target.exists():
                        shutil.copymode(target, partial_path)
                    partial_path.replace(target)
                sync(target.parent)
                partial.record_file.unlink()
                sync(target.parent)
        finally:
            # What a full disk refused is in the buffer still, and may be refused again.
            with storage_errors(partial_path):
                file.close()


def _keep_private(target: Path, partial_path: Path) -> None:
    """Let only those read a partial file who may read the target; its owner may write it, too."""
    with storage_errors(partial_path):
        if target.exists():
            mode = stat.S_IMODE(target.stat().st_mode)
            partial_path.chmod(mode | stat.S_IRUSR | stat.S_IWUSR)


def _compress(partial_path: Path, path: Path) -> None:
    """Make FILE.gz of a partial file, and remove this only when that is whole."""
    with partial_path.open("rb") as content, open_atomic(path) as compressed:
        shutil.copyfileobj(content, compressed)
    partial_path.unlink()
