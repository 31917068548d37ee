"""Filters of training pairs: by length, and duplicates."""

import hashlib
import math
import tempfile
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tformer_cli.config.schema.data import FilterConfig

# Pairs sorted together to find duplicates: some dozens of MiB, whatever the corpus size.
GROUP_PAIRS = 1 << 19
DIGEST_AND_INDEX = np.dtype([("digest", "<u8", 2), ("index", "<i8")])


@dataclass(slots=True)
class FilterReport:
    """Number of pairs kept, and of pairs dropped by the first rule that they break."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    duplicate: int = 0

    @property
    def seen(self) -> int:
        """All pairs, kept or not."""
        return sum(astuple(self))

    def __add__(self, other: "FilterReport") -> "FilterReport":
        return FilterReport(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return self.describe()

    def describe(self, noun: str = "pair") -> str:
        """Return the counts in words; `noun` is what is counted: pairs or lines."""
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
    """Return (n,) whether the length of each pair is allowed, and the counts.

    `lengths` has (n,) tokens of the sources, and of the targets if any, without special ones.
    """
    shorter, longer = np.min(lengths, axis=0), np.max(lengths, axis=0)
    empty = shorter == 0
    too_long = ~empty & (longer > config.max_length)
    kept = ~(empty | too_long)
    ratio = np.zeros_like(kept)
    if config.max_ratio is not None:
        ratio = kept & (longer > config.max_ratio * shorter)
        kept &= ~ratio
    masks = {"kept": kept, "empty": empty, "too_long": too_long, "ratio": ratio}
    return kept, FilterReport(**{reason: int(mask.sum()) for reason, mask in masks.items()})


def pair_digests(pairs: Iterable[tuple[str, ...]]) -> np.ndarray:
    """Return (n, 2) 64-bit halves of a hash of each pair's text.

    Among a billion pairs, a collision has probability 1.5e-21.
    """
    # LF separates the sides unambiguously, since no line contains it.
    digests = (hashlib.blake2b("\n".join(pair).encode(), digest_size=16).digest() for pair in pairs)
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def find_repeats(digests: np.ndarray, directory: Path) -> np.ndarray:
    """Return (n,) whether an earlier pair has the same of (n, 2) digests.

    The pairs are distributed into groups by digest in a temporary file of 24 bytes a pair in
    `directory`, and each group is sorted. Memory is one byte a pair and a constant; time is linear.
    """
    is_repeated = np.zeros(len(digests), dtype=np.bool_)
    if len(digests) == 0:
        return is_repeated
    num_groups = math.ceil(len(digests) / GROUP_PAIRS)
    with tempfile.TemporaryFile(dir=directory) as file:
        bounds = [
            start + _append_groups(file, digests[start : start + GROUP_PAIRS], start, num_groups)
            for start in range(0, len(digests), GROUP_PAIRS)
        ]
        file.flush()
        grouped = np.memmap(file, dtype=DIGEST_AND_INDEX, mode="r").view(np.ndarray)
        for group in range(num_groups):
            pairs = np.concatenate([grouped[part[group] : part[group + 1]] for part in bounds])
            # A stable sort keeps the first of equal pairs first.
            low, high = pairs["digest"].T
            pairs = pairs[np.lexsort((low, high))]
            equal = (pairs["digest"][1:] == pairs["digest"][:-1]).all(axis=1)
            is_repeated[pairs["index"][1:][equal]] = True
    return is_repeated


def _append_groups(file: BinaryIO, digests: np.ndarray, start: int, num_groups: int) -> np.ndarray:
    """Append digests and indices, from `start` on, by group; return (num_groups + 1,) bounds."""
    # Sorting 16-bit integers, nearly always enough, takes a tenth of the time.
    groups = (digests[:, 0] % np.uint64(num_groups)).astype(np.min_scalar_type(num_groups))
    order = np.argsort(groups, kind="stable")
    pairs = np.empty(len(digests), dtype=DIGEST_AND_INDEX)
    pairs["digest"] = digests[order]
    pairs["index"] = start + order
    file.write(pairs.tobytes())
    return np.searchsorted(groups[order], np.arange(num_groups + 1))
