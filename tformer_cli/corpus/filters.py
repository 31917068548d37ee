"""Which training pairs are left out, and how many were."""

import hashlib
import math
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tformer_cli.config.schema.data import FilterConfig

# Duplicates are looked for among about so many pairs at once: some dozens of MiB, whatever the
# corpus.
GROUP_PAIRS = 1 << 19
# A digest, and which pair of the corpus has it.
PLACED = np.dtype([("digest", "<u8", 2), ("place", "<i8")])


@dataclass(slots=True)
class FilterReport:
    """How many pairs were kept, and how many dropped for which reason.

    A pair that breaks several rules counts under the first of them.
    """

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    duplicate: int = 0

    @property
    def seen(self) -> int:
        """All pairs, kept or not."""
        return self.kept + self.empty + self.too_long + self.ratio + self.duplicate

    def __add__(self, other: "FilterReport") -> "FilterReport":
        more = asdict(other)
        return FilterReport(**{reason: n + more[reason] for reason, n in asdict(self).items()})

    def __str__(self) -> str:
        return self.describe("pair")

    def describe(self, noun: str) -> str:
        """Return the counts in words, of pairs or of the lines of a text alone."""
        reasons = {
            "empty": self.empty,
            "too long": self.too_long,
            "of unequal length": self.ratio,
            "duplicate": self.duplicate,
        }
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        kept = f"{self.seen:,} {noun}{'' if self.seen == 1 else 's'}: {self.kept:,} kept"
        return f"{kept}; dropped {dropped}" if dropped else kept


def filter_lengths(config: FilterConfig, *lengths: np.ndarray) -> tuple[np.ndarray, FilterReport]:
    """Judge n pairs by their lengths; duplicates are another matter.

    Args:
        config: the rules.
        lengths: (n,) tokens of each source, without special ones, and likewise of each target,
            where there are targets.

    Returns:
        (n,) whether each is kept, and the counts.
    """
    shorter, longer = np.min(lengths, axis=0), np.max(lengths, axis=0)
    empty = shorter == 0
    too_long = ~empty & (longer > config.max_length)
    kept = ~(empty | too_long)
    ratio = np.zeros_like(kept)
    if config.max_ratio is not None:
        ratio = kept & (longer > config.max_ratio * shorter)
        kept &= ~ratio
    counts = {"kept": kept, "empty": empty, "too_long": too_long, "ratio": ratio}
    return kept, FilterReport(**{reason: int(found.sum()) for reason, found in counts.items()})


def pair_digests(pairs: Iterable[tuple[str, ...]]) -> np.ndarray:
    """Return (n, 2) 64-bit halves of a digest of each pair's texts.

    Among a billion pairs any two different ones have the same with probability 1.5e-21.
    """
    # No line holds the LF between the two.
    digests = (hashlib.blake2b("\n".join(pair).encode(), digest_size=16).digest() for pair in pairs)
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def find_repeats(digests: np.ndarray, folder: Path) -> np.ndarray:
    """Return (n,) whether an earlier pair has the same digest.

    The pairs are dealt out into groups by digest, and those of each group are sorted, so that
    besides the answer, a byte a pair, memory does not grow with the corpus, and time in proportion
    to it.

    Args:
        digests: (n, 2) of `pair_digests`; from a mapped file for instance.
        folder: for a file that holds the groups, 24 bytes a pair, and goes at the end.

    Raises:
        OSError: the file cannot be written.
    """
    repeated = np.zeros(len(digests), dtype=np.bool_)
    num_groups = math.ceil(len(digests) / GROUP_PAIRS)
    with tempfile.TemporaryFile(dir=folder) as file:
        bounds = [
            start + _append_in_groups(file, digests[start : start + GROUP_PAIRS], start, num_groups)
            for start in range(0, len(digests), GROUP_PAIRS)
        ]
        file.flush()
        for group in range(num_groups):
            pairs = np.concatenate(
                [_read(file, part[group], part[group + 1]) for part in bounds], dtype=PLACED
            )
            # Sorting keeps the order of equal ones, so the first of them is the first of all.
            low, high = pairs["digest"].T
            pairs = pairs[np.lexsort((low, high))]
            equal = (pairs["digest"][1:] == pairs["digest"][:-1]).all(axis=1)
            repeated[pairs["place"][1:][equal]] = True
    return repeated


def _append_in_groups(
    file: BinaryIO, digests: np.ndarray, start: int, num_groups: int
) -> np.ndarray:
    """Append digests with their places, which begin at `start`, group after group.

    Returns:
        (num_groups + 1,) group g is at [g] to [g + 1] of what was appended, in pairs.
    """
    # In 16 bits, which nearly always do, sorting takes a tenth of the time.
    groups = (digests[:, 0] % np.uint64(num_groups)).astype(np.min_scalar_type(num_groups))
    order = np.argsort(groups, kind="stable")
    pairs = np.empty(len(digests), dtype=PLACED)
    pairs["digest"], pairs["place"] = digests[order], start + order
    file.write(pairs.tobytes())
    return np.searchsorted(groups[order], np.arange(num_groups + 1))


def _read(file: BinaryIO, start: int, stop: int) -> np.ndarray:
    size = PLACED.itemsize
    content = os.pread(file.fileno(), int(stop - start) * size, int(start) * size)
    return np.frombuffer(content, dtype=PLACED)
