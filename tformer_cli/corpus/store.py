"""All pairs of a corpus as token ids, in flat arrays rather than objects."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tformer_cli.corpus.batch import Example
from tformer_cli.corpus.weights import PairWeights

# So many pairs or tokens are looked at together: what that takes does not grow with the corpus.
SLICE = 1 << 16


@dataclass(frozen=True, slots=True)
class TokenStore:
    """Token ids of n pairs, side by side in two flat arrays, in memory or mapped from files.

    The sentences of a text alone are their own targets: both sides are the same arrays.

    Attributes:
        source_ids: all source tokens, one pair after the other.
        source_offsets: (n + 1,) pair i is source_ids[source_offsets[i] : source_offsets[i + 1]].
        target_ids: likewise.
        target_offsets: likewise.
        weights: (n,) how many times an epoch sees each pair.
        known_fingerprint: what `fingerprint` returns, where that has been worked out before.
    """

    source_ids: np.ndarray
    source_offsets: np.ndarray
    target_ids: np.ndarray
    target_offsets: np.ndarray
    weights: PairWeights
    known_fingerprint: str | None = None

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: int) -> Example:
        (example,) = self.examples(np.array([index]))
        return example

    def examples(self, indices: np.ndarray) -> list[Example]:
        """Return the pairs at some places, in the order given."""
        sources = _rows(self.source_ids, self.source_offsets, indices)
        targets = _rows(self.target_ids, self.target_offsets, indices)
        return list(map(Example, indices.tolist(), sources, targets))

    @property
    def source_lengths(self) -> np.ndarray:
        """(n,) tokens of each source."""
        return _lengths(self.source_offsets)

    @property
    def target_lengths(self) -> np.ndarray:
        """(n,) tokens of each target."""
        return _lengths(self.target_offsets)

    def fingerprint(self) -> str:
        """Return a hash of everything that training sees of these pairs.

        It is the same wherever they lie, and in integers of whatever size.
        """
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
            for places in slices(len(part)):
                digest.update(part[places].astype(dtype).tobytes())
        return digest.hexdigest()


def build_store(pairs: Iterable[tuple[list[int], list[int], float]]) -> TokenStore:
    """Gather (source ids, target ids, weight) triples in memory, in their order."""
    source_ids, target_ids = array("I"), array("I")
    source_offsets, target_offsets = array("q", [0]), array("q", [0])
    weights = array("d")
    for source, target, weight in pairs:
        source_ids.extend(source)
        target_ids.extend(target)
        source_offsets.append(len(source_ids))
        target_offsets.append(len(target_ids))
        weights.append(weight)
    return TokenStore(
        source_ids=np.asarray(source_ids, dtype=np.uint32),
        source_offsets=np.asarray(source_offsets, dtype=np.int64),
        target_ids=np.asarray(target_ids, dtype=np.uint32),
        target_offsets=np.asarray(target_offsets, dtype=np.int64),
        weights=PairWeights.of_pairs(weights),
    )


def slices(size: int) -> Iterator[slice]:
    """Yield slices that cover `size` places in their order, each of a bounded length."""
    for start in range(0, size, SLICE):
        yield slice(start, min(start + SLICE, size))


def _rows(ids: np.ndarray, offsets: np.ndarray, indices: np.ndarray) -> list[np.ndarray]:
    # One look at the offsets for all rows: numpy is slow to hand out single numbers.
    starts, stops = offsets[indices].tolist(), offsets[indices + 1].tolist()
    return [ids[start:stop] for start, stop in zip(starts, stops, strict=True)]


def _lengths(offsets: np.ndarray) -> np.ndarray:
    lengths = np.empty(len(offsets) - 1, dtype=np.int32)
    for places in slices(len(lengths)):
        lengths[places] = np.diff(offsets[places.start : places.stop + 1])
    return lengths
