"""Token ids of a corpus in flat arrays, in memory or memory-mapped from a store directory."""

import contextlib
import hashlib
import itertools
import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from tformer_cli.corpus.filters import FilterReport
from tformer_cli.errors import StorageError
from tformer_cli.storage.atomic import file_checksum, read_json, write_json

# Part of every store's key: raise it when the files of a store or of a shard change.
STORE_VERSION = 3
OFFSET_DTYPE = "<i8"
# Files of ids and of offsets. The targets of monolingual text are its sources: no target files.
SIDE_FILES = ("source.ids", "source.offsets"), ("target.ids", "target.offsets")

# Pairs or tokens processed together, so that memory does not grow with the corpus.
SLICE = 1 << 16

# From the number of pairs of each text to their weight.
WeightsOf = Callable[[Sequence[int]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Example:
    """Pair `index % n` of n pairs of a corpus as token ids, without special tokens.

    What changes a pair at random draws by `index`, which is larger by n each time that an epoch has
    the pair once more.
    """

    index: int
    source: Sequence[int] | np.ndarray
    target: Sequence[int] | np.ndarray


@dataclass(frozen=True, slots=True)
class PairWeights:
    """Number of times an epoch sees each of n pairs, run-length encoded.

    Run j of pairs ends before stops[j] and has the weight values[j].
    """

    stops: np.ndarray
    values: np.ndarray

    @classmethod
    def of_runs(cls, counts: Iterable[int], values: Iterable[float]) -> Self:
        """Return counts[j] weights of values[j], run after run."""
        runs = [(n, value) for n, value in zip(counts, values, strict=True) if n]
        return cls(
            stops=np.cumsum([n for n, _ in runs], dtype=np.int64),
            values=np.array([value for _, value in runs], dtype=np.float64),
        )

    def __len__(self) -> int:
        return int(self.stops[-1]) if len(self.stops) else 0

    def twice(self) -> Self:
        """Return the weights of all pairs, and then of all again."""
        stops = np.concatenate((self.stops, len(self) + self.stops))
        return replace(self, stops=stops, values=np.tile(self.values, 2))

    def __getitem__(self, pairs: slice) -> np.ndarray:
        indices = np.arange(*pairs.indices(len(self)))
        return self.values[np.searchsorted(self.stops, indices, side="right")]


def temperature_weights(
    weights: Sequence[float],
    directions: Sequence[Hashable],
    temperature: float,
    num_pairs: Sequence[int],
) -> list[float]:
    """Return how often an epoch has each pair of each text, by the text's own weight and direction.

    Direction i with D_i of N weighted pairs has N p_i of them in an epoch, where p_i is
    proportional to (D_i / N) ** (1 / temperature) (Arivazhagan et al. 2019, section 4.2).
    """
    sizes: dict[Hashable, float] = defaultdict(float)
    for weight, direction, count in zip(weights, directions, num_pairs, strict=True):
        sizes[direction] += weight * count
    scaled = {direction: size ** (1 / temperature) for direction, size in sizes.items()}
    unit = sum(sizes.values()) / sum(scaled.values())
    return [
        weight * unit * scaled[direction] / sizes[direction] if sizes[direction] else weight
        for weight, direction in zip(weights, directions, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class PairTags:
    """Tag ids that each of n sources begins with, run-length encoded.

    Run j of pairs ends before stops[j] and has the tags ids[j] (W,), padded with 0 on the right.
    """

    stops: np.ndarray
    ids: np.ndarray

    @classmethod
    def of_runs(cls, counts: Iterable[int], tags: Sequence[Sequence[int]]) -> Self:
        """Return counts[j] times tags[j], run after run."""
        ids = np.zeros((len(tags), max(map(len, tags))), dtype=np.uint32)
        for row, own in zip(ids, tags, strict=True):
            row[: len(own)] = own
        return cls(np.cumsum(list(counts), dtype=np.int64), ids)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Return the padded tags (n, W) of the pairs at some indices."""
        tags: np.ndarray = self.ids[np.searchsorted(self.stops, indices, side="right")]
        return tags

    def before(self, rows: Sequence[np.ndarray], indices: np.ndarray) -> list[np.ndarray]:
        """Return the ids of the pairs at some indices, behind their tags."""
        pairs = zip(self[indices], rows, strict=True)
        return [np.concatenate((tags[tags > 0], row)) for tags, row in pairs]

    def add_to(self, lengths: np.ndarray) -> None:
        """Add the number of tags of each pair to lengths (n,)."""
        for span in slices(len(lengths)):
            tags = self[np.arange(span.start, span.stop)]
            lengths[span] += (tags > 0).sum(axis=1, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class TokenStore:
    """Token ids of n pairs in two flat arrays; monolingual text has the same on both sides.

    Source i is its tags, then source_ids[source_offsets[i] : source_offsets[i + 1]]; offsets are
    (n + 1,). So is target i, behind `target_tags`. `known_fingerprint` caches `fingerprint()`.
    """

    source_ids: np.ndarray
    source_offsets: np.ndarray
    target_ids: np.ndarray
    target_offsets: np.ndarray
    weights: PairWeights
    tags: PairTags | None = None
    target_tags: PairTags | None = None
    known_fingerprint: str | None = None

    def __len__(self) -> int:
        return len(self.weights)

    def examples(self, indices: np.ndarray) -> list[Example]:
        """Return the pairs at `indices`, modulo n, in that order."""
        rows = indices % len(self)
        sources = _rows(self.source_ids, self.source_offsets, rows)
        targets = _rows(self.target_ids, self.target_offsets, rows)
        if self.tags is not None:
            sources = self.tags.before(sources, rows)
        if self.target_tags is not None:
            targets = self.target_tags.before(targets, rows)
        return list(map(Example, indices.tolist(), sources, targets))

    @property
    def source_lengths(self) -> np.ndarray:
        """(n,) tokens of each source, with its tags."""
        lengths = _lengths(self.source_offsets)
        if self.tags is not None:
            self.tags.add_to(lengths)
        return lengths

    @property
    def target_lengths(self) -> np.ndarray:
        """(n,) tokens of each target, with its tags."""
        lengths = _lengths(self.target_offsets)
        if self.target_tags is not None:
            self.target_tags.add_to(lengths)
        return lengths

    def fingerprint(self) -> str:
        """Return a hash of ids, weights and tags, whatever the integer size of the arrays."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        digest = hashlib.sha256()
        for part, dtype in (
            (self.source_ids, "<u4"),
            (self.source_offsets, "<i8"),
            (self.target_ids, "<u4"),
            (self.target_offsets, "<i8"),
            (self.weights, "<f8"),
        ):
            for span in slices(len(part)):
                digest.update(part[span].astype(dtype).tobytes())
        for each in filter(None, (self.tags, self.target_tags)):
            for span in slices(len(self)):
                tags = each[np.arange(span.start, span.stop)]
                digest.update(tags.astype(id_dtype(int(each.ids.max()) + 1)).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class BidirectionalStore:
    """Both directions of the n pairs of a store: example n + i is pair i swapped.

    The tags of a pair come before its source in each direction, so they are never predicted.
    """

    pairs: TokenStore

    def examples(self, indices: np.ndarray) -> list[Example]:
        """Return the examples at `indices`, modulo 2n, in that order."""
        num_pairs = len(self.pairs)
        # Pair i has the indices i, i + 2n and so on; swapped, it has i + n, i + 3n and so on.
        is_swapped = indices // num_pairs % 2 == 1
        plain = iter(self.pairs.examples(indices[~is_swapped]))
        swapped = iter(self._swapped.examples(indices[is_swapped]))
        return [next(swapped if other else plain) for other in is_swapped.tolist()]

    @property
    def source_lengths(self) -> np.ndarray:
        """(2n,) tokens of each source, with its tags."""
        return np.concatenate((self.pairs.source_lengths, self._swapped.source_lengths))

    @property
    def target_lengths(self) -> np.ndarray:
        """(2n,) tokens of each target."""
        return np.concatenate((self.pairs.target_lengths, self._swapped.target_lengths))

    @property
    def weights(self) -> PairWeights:
        """Weights of the 2n examples; a pair has the same in each direction."""
        return self.pairs.weights.twice()

    @property
    def _swapped(self) -> TokenStore:
        return replace(
            self.pairs,
            source_ids=self.pairs.target_ids,
            source_offsets=self.pairs.target_offsets,
            target_ids=self.pairs.source_ids,
            target_offsets=self.pairs.source_offsets,
            known_fingerprint=None,
        )


def build_store(pairs: Iterable[tuple[list[int], list[int]]]) -> TokenStore:
    """Collect the ids of pairs, each of weight 1, in memory."""
    source_ids, target_ids = array("I"), array("I")
    source_offsets, target_offsets = array("q", [0]), array("q", [0])
    for source, target in pairs:
        source_ids.extend(source)
        target_ids.extend(target)
        source_offsets.append(len(source_ids))
        target_offsets.append(len(target_ids))
    return TokenStore(
        source_ids=np.asarray(source_ids, dtype=np.uint32),
        source_offsets=np.asarray(source_offsets, dtype=np.int64),
        target_ids=np.asarray(target_ids, dtype=np.uint32),
        target_offsets=np.asarray(target_offsets, dtype=np.int64),
        weights=PairWeights.of_runs([len(source_offsets) - 1], [1.0]),
    )


def write_index(directory: Path, id_dtypes: Sequence[str], reports: Iterable[FilterReport]) -> None:
    """Complete a store directory by its index, with the filter counts of each text."""
    index = {
        "id_dtypes": list(id_dtypes),
        "texts": [asdict(report) for report in reports],
        "sha256": _file_checksums(directory, len(id_dtypes)),
        "fingerprints": {},
    }
    _write_index(directory, index)


def open_store(
    directory: Path,
    weights_of: WeightsOf,
    tags: Sequence[Sequence[int]],
    target_tags: Sequence[Sequence[int]],
) -> tuple[TokenStore, FilterReport] | None:
    """Verify the checksums of a store directory and memory-map it.

    The files depend neither on the weight nor on the tag ids of each text; `weights_of` returns the
    weights for the numbers of pairs that were kept. The filter counts are returned too; None if the
    store is missing or damaged.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
        index = read_json(directory / "index.json")
        if index.pop("checksum") != _index_checksum(index):
            return None
        reports = [FilterReport(**counts) for counts in index["texts"]]
        sides = [
            (_memory_map(directory / ids, dtype), _memory_map(directory / offsets, OFFSET_DTYPE))
            for (ids, offsets), dtype in zip(SIDE_FILES, index["id_dtypes"], strict=False)
        ]
        kept = [report.kept for report in reports]
        weights = weights_of(kept)
        store = TokenStore(
            *sides[0],
            *sides[-1],
            weights=PairWeights.of_runs(kept, weights),
            tags=PairTags.of_runs(kept, tags) if any(tags) else None,
            target_tags=PairTags.of_runs(kept, target_tags) if any(target_tags) else None,
        )
        if _file_checksums(directory, len(index["id_dtypes"])) == index["sha256"]:
            marks = (*tags, *target_tags)
            name = " ".join(map(repr, (*weights, *marks) if any(marks) else weights))
            if name not in index["fingerprints"]:
                index["fingerprints"][name] = store.fingerprint()
                # A store of somebody else may be read-only.
                with contextlib.suppress(StorageError):
                    _write_index(directory, index)
            store = replace(store, known_fingerprint=index["fingerprints"][name])
            return store, sum(reports, FilterReport())
    return None


def slices(size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `SLICE` indices that cover `size`."""
    for start in range(0, size, SLICE):
        yield slice(start, min(start + SLICE, size))


def _rows(ids: np.ndarray, offsets: np.ndarray, indices: np.ndarray) -> list[np.ndarray]:
    # One lookup of all offsets: reading numpy scalars one by one is slow.
    starts, stops = offsets[indices].tolist(), offsets[indices + 1].tolist()
    return [ids[start:stop] for start, stop in zip(starts, stops, strict=True)]


def _lengths(offsets: np.ndarray) -> np.ndarray:
    lengths = np.empty(len(offsets) - 1, dtype=np.int32)
    for span in slices(len(lengths)):
        lengths[span] = np.diff(offsets[span.start : span.stop + 1])
    return lengths


def _memory_map(file: Path, dtype: str) -> np.ndarray:
    # As a plain array: slicing a memmap costs several times as much.
    return np.memmap(file, dtype=dtype, mode="r").view(np.ndarray)


def id_dtype(vocabulary_size: int) -> str:
    """Return the little-endian integers that hold every id of a vocabulary."""
    return "<u2" if vocabulary_size <= 1 << 16 else "<u4"


def _file_checksums(directory: Path, num_sides: int) -> dict[str, str]:
    names = itertools.chain.from_iterable(SIDE_FILES[:num_sides])
    return {name: file_checksum(directory / name) for name in names}


def _write_index(directory: Path, index: dict[str, Any]) -> None:
    write_json(directory / "index.json", {**index, "checksum": _index_checksum(index)})


def _index_checksum(index: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()
