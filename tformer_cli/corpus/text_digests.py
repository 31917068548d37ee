"""Digests of text files, remembered as long as the files stay as they are."""

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tformer_cli.errors import DataError
from tformer_cli.json_text import read_json
from tformer_cli.storage.atomic import write_text

# A file changed this recently may change again without a trace in its times.
SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class TextDigests:
    """A JSON file of path -> [size, time of the last change in ns, digest]."""

    path: Path

    def of(self, texts: Sequence[Path]) -> list[str]:
        """Return a digest of the content of each file, read only where it is not known yet.

        Raises:
            DataError: a file cannot be read.
            StorageError: the digests cannot be written.
        """
        known = self._known()
        found = dict(known)
        digests = []
        for text in texts:
            name = str(text.resolve())
            try:
                status = text.stat()
                state = [status.st_size, status.st_mtime_ns]
                digest = found[name][2] if found.get(name, [])[:2] == state else _digest(text)
            except OSError as error:
                raise DataError(str(text), "cannot be read", got=error.strerror) from None
            digests.append(str(digest))
            if time.time_ns() - status.st_mtime_ns > SETTLED_NS:
                found[name] = [*state, digest]
        if found != known:
            # In ASCII: names of files need not be UTF-8.
            write_text(self.path, json.dumps(found, indent=2) + "\n")
        return digests

    def _known(self) -> dict[str, list[int | str]]:
        """Return what the file holds; nothing where it is not as it was written."""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            known = read_json(self.path)
            return {
                name: [size, changed_ns, digest]
                for name, (size, changed_ns, digest) in known.items()
            }
        return {}


def _digest(text: Path) -> str:
    with text.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
