"""A token store on disk: what its folder holds, and how it is opened."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tformer_cli.corpus.filters import FilterReport
from tformer_cli.corpus.store import TokenStore
from tformer_cli.corpus.weights import PairWeights
from tformer_cli.json_text import read_json
from tformer_cli.storage.atomic import write_json

# Part of every store's key: raise it when the files or their meaning change.
FORMAT_VERSION = 2

OFFSET_DTYPE = "<i8"

# Each number in these files fills as many bytes as the index says, little-endian.
SIDES = ("source.ids", "source.offsets"), ("target.ids", "target.offsets")


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """The folder of a finished store, which never changes.

    source.ids, target.ids   source.offsets, target.offsets (the arrays of TokenStore)   index.json

    That of a text alone has no target files: what comes out is what goes in.
    """

    path: Path

    def write_index(self, id_dtypes: tuple[str, ...], reports: Iterable[FilterReport]) -> None:
        """Say what the other files hold.

        Args:
            id_dtypes: of the ids of each side.
            reports: what became of the pairs of each text.
        """
        index = {
            "id_dtypes": list(id_dtypes),
            "texts": [asdict(report) for report in reports],
            "sha256": self._checksums(len(id_dtypes)),
            "fingerprints": {},
        }
        self._write(index)

    def open(self, weights: Sequence[float]) -> tuple[TokenStore, FilterReport] | None:
        """Compare all files with their checksums, and map them into memory.

        Args:
            weights: of each text.

        Returns:
            The store, and what became of all pairs; None if no whole store is there.
        """
        # Whatever is not as it was written counts as not there, and is built again.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
            index = self._read()
            reports = [FilterReport(**counts) for counts in index["texts"]]
            sides = [
                (self._mapped(ids, dtype), self._mapped(offsets, OFFSET_DTYPE))
                for (ids, offsets), dtype in zip(SIDES, index["id_dtypes"], strict=False)
            ]
            store = TokenStore(
                *sides[0],
                *sides[-1],
                weights=PairWeights.of_runs((report.kept for report in reports), weights),
            )
            if self._checksums(len(index["id_dtypes"])) == index["sha256"]:
                return self._identified(store, index, weights), sum(reports, FilterReport())
        return None

    @property
    def _index_file(self) -> Path:
        return self.path / "index.json"

    def _identified(
        self, store: TokenStore, index: dict[str, Any], weights: Sequence[float]
    ) -> TokenStore:
        """Return the store with its fingerprint, worked out once for these weights."""
        fingerprints, name = index["fingerprints"], " ".join(map(repr, weights))
        if name not in fingerprints:
            fingerprints[name] = store.fingerprint()
            self._write(index)
        return replace(store, known_fingerprint=fingerprints[name])

    def _mapped(self, name: str, dtype: str) -> np.ndarray:
        # As a plain array: slices of a memmap cost several times as much.
        return np.memmap(self.path / name, dtype=dtype, mode="r").view(np.ndarray)

    def _checksums(self, num_sides: int) -> dict[str, str]:
        """Return the SHA-256 of each file but the index."""
        checksums = {}
        for name in itertools.chain.from_iterable(SIDES[:num_sides]):
            with (self.path / name).open("rb") as file:
                checksums[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return checksums

    def _read(self) -> dict[str, Any]:
        """Return the index.

        Raises:
            ValueError: it is not as it was written.
        """
        index: dict[str, Any] = read_json(self._index_file)
        if index.pop("checksum") != _checksum_of(index):
            raise ValueError(self._index_file)
        return index

    def _write(self, index: dict[str, Any]) -> None:
        write_json(self._index_file, {**index, "checksum": _checksum_of(index)})


def _checksum_of(index: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()
