"""A file that is written part by part, and goes on where a kill left it."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tformer_cli.errors import DataError, UsageError
from tformer_cli.json_text import read_json
from tformer_cli.storage.atomic import make_directory, storage_errors, sync_directory
from tformer_cli.storage.lock import acquire, open_lock_file

READ_BYTES = 1 << 20


class PartialFile:
    """The beginning of FILE, in FILE.partial; FILE.partial.json says how far it goes, and of what.

    What is added is on the disk before the record counts it. So all that the record counts is
    there whenever the machine stops, and what lies beyond is a part that was cut short.

    Attributes:
        num_lines: of what FILE is made from, that are done.
    """

    def __init__(self, path: Path, file: BinaryIO, made_from: Mapping[str, object]) -> None:
        """Go on, or begin where the file is empty.

        Args:
            path: of the partial file.
            file: the same, open and this process's own.
            made_from: by name all that decides what FILE will hold, as JSON has it.

        Raises:
            UsageError: what is there is made from something else.
            DataError: it is not what was written.
            StorageError: the system does not let it be read or written.
        """
        self.path = path
        self._file = file
        self._made_from = dict(made_from)
        self._digest = hashlib.sha256()
        self.num_lines = self._num_bytes = 0
        with storage_errors(path):
            if os.fstat(file.fileno()).st_size > 0:
                self._go_on()
            else:
                self._save_record()

    @property
    def record_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    def add(self, text: str, num_lines: int) -> None:
        """Write what comes of some more lines.

        Raises:
            StorageError: the system does not let it be written.
        """
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
        # Under one name, so that a kill leaves nothing behind that the next attempt does not use.
        temporary = self.path.with_name(f".{self.record_file.name}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o666), "w", encoding="utf-8") as file:
            file.write(json.dumps(record, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.record_file)
        sync_directory(self.path.parent)

    def _go_on(self) -> None:
        damaged = DataError(
            str(self.path),
            "is not what was written",
            remedy="remove it, or name another file",
        )
        try:
            record = read_json(self.record_file)
            made_from = dict(record["made_from"])
            num_lines, num_bytes = int(record["num_lines"]), int(record["num_bytes"])
            digest = record["sha256"]
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            raise damaged from None
        names = [*self._made_from, *(name for name in made_from if name not in self._made_from)]
        others = [name for name in names if made_from.get(name) != self._made_from.get(name)]
        if others:
            raise UsageError(
                str(self.path),
                "is the beginning of another file",
                got=f"another {', '.join(others)}",
                remedy="remove it, or name another file",
            )
        left = num_bytes
        while left > 0 and (content := self._file.read(min(left, READ_BYTES))):
            self._digest.update(content)
            left -= len(content)
        if self._digest.hexdigest() != digest:
            raise damaged
        self._file.truncate(num_bytes)
        self._file.seek(num_bytes)
        self.num_lines, self._num_bytes = num_lines, num_bytes


@contextlib.contextmanager
def partial_file(path: Path, made_from: Mapping[str, object]) -> Iterator[PartialFile]:
    """Open the beginning of a file, if there is one; at the end it takes the place of `path`.

    Until then `path` is what it was before. Where the body fails, the beginning stays.

    Args:
        path: the file that is to be; of a link what it points at.
        made_from: by name all that decides what it will hold, as JSON has it.

    Raises:
        UsageError: `path` is a folder or a device; another process is at work on it; or what is
            there is the beginning of something else.
        DataError: what is there is not what was written.
        StorageError: the system does not let it be read or written.
    """
    if path.exists() and not path.is_file():
        raise UsageError(
            str(path), "is no file that could be written part by part", remedy="name a file"
        )
    place = Path(os.path.realpath(path))
    partial = place.with_name(f"{place.name}.partial")
    with storage_errors(partial):
        make_directory(place.parent)
        file = open(open_lock_file(partial), "r+b")  # noqa: SIM115 - closed below
    try:
        with storage_errors(partial):
            is_own = acquire(file.fileno())
        if not is_own:
            raise UsageError(
                str(partial), "another process is at work on it", remedy="wait until it is done"
            )
        beginning = PartialFile(partial, file, made_from)
        yield beginning
        with storage_errors(path):
            partial.replace(place)
            sync_directory(place.parent)
            beginning.record_file.unlink()
            sync_directory(place.parent)
    finally:
        # What a full disk has refused is written again here.
        with storage_errors(partial):
            file.close()
