"""A file that grows at its end and goes on after a kill, if it still holds what was written."""

import hashlib
import os
from pathlib import Path
from typing import ClassVar, Self

READ_BYTES = 1 << 20


class AppendedFile:
    """A file that grows at its end, and a checksum of all that was written.

    Attributes:
        EMPTY: the checksum of no bytes.
        size: in bytes.
    """

    EMPTY: ClassVar = hashlib.sha256().hexdigest()

    def __init__(self, path: Path) -> None:
        """Open it, created if there is none.

        Raises:
            OSError: it cannot be opened.
        """
        self._file = path.open("a+b")
        self._digest = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def checksum(self) -> str:
        """SHA-256 of its content."""
        return self._digest.hexdigest()

    def go_on(self, size: int, checksum: str) -> bool:
        """Cut it off behind its first `size` bytes; return whether these have that checksum."""
        self._digest, self.size = hashlib.sha256(), 0
        self._file.seek(0)
        while content := self._file.read(min(size - self.size, READ_BYTES)):
            self._digest.update(content)
            self.size += len(content)
        if self.size < size or self.checksum != checksum:
            return False
        self._file.truncate(size)
        return True

    def write(self, content: bytes) -> None:
        """Append some bytes."""
        self._file.write(content)
        self._digest.update(content)
        self.size += len(content)

    def save(self) -> None:
        """Make what it holds survive a power cut."""
        self._file.flush()
        os.fsync(self._file.fileno())
