"""Checksums of the files of texts, cached beside the token stores."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from tformer_cli.config.schema.text import Text
from tformer_cli.errors import DataError, StorageError
from tformer_cli.storage.atomic import file_checksum, read_json, write_json

# File of cached checksums.
TEXTS_FILE = "texts.json"
# A file modified this recently may change again without a new modification time.
SETTLED_NS = 2_000_000_000


def reading_checksums(text: Text, stores: Path) -> list[str]:
    """Return the checksums of a text's files, and what else decides how they are read."""
    checksums = text_checksums(list(text.files.values()), stores)
    return [*checksums, text.reading] if text.reading else checksums


def text_checksums(texts: Sequence[Path], stores: Path) -> list[str]:
    """Return the SHA-256 of each file, cached in `stores` by path, size and modification time."""
    cache_file = stores / TEXTS_FILE
    cache: dict[str, list[int | str]] = {}
    # Of a missing or damaged file, nothing is cached.
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        cache = {
            name: [size, changed_ns, checksum]
            for name, (size, changed_ns, checksum) in read_json(cache_file).items()
        }
    updated = dict(cache)
    checksums = []
    for text in texts:
        name = str(text.resolve())
        try:
            status = text.stat()
            state = [status.st_size, status.st_mtime_ns]
            is_known = updated.get(name, [])[:2] == state
            checksum = str(updated[name][2]) if is_known else file_checksum(text)
        except OSError as error:
            raise DataError(str(text), "cannot be read", got=error.strerror) from None
        checksums.append(checksum)
        if time.time_ns() - status.st_mtime_ns > SETTLED_NS:
            updated[name] = [*state, checksum]
    if updated != cache:
        # Stores of somebody else may be read-only.
        with contextlib.suppress(StorageError):
            write_json(cache_file, updated)
    return checksums
