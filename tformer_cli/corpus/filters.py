"""Which training pairs are left out, and how many were."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from tformer_cli.config.schema.data import FilterConfig

# Duplicates are looked for among about so many pairs at once: some ten MiB, whatever the corpus.
GROUP_PAIRS = 1 << 18


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
        return self.told("pair")

    def told(self, noun: str) -> str:
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


def judge(config: FilterConfig, *lengths: np.ndarray) -> tuple[np.ndarray, FilterReport]:
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


def find_repeats(digests: np.ndarray) -> np.ndarray:
    """Return (n,) whether an earlier pair has the same digest.

    The pairs are looked at in groups by digest, so that besides the answer, a byte a pair, memory
    does not grow with the corpus. Each group reads all digests once, from a mapped file for
    instance.

    Args:
        digests: (n, 2) of `pair_digests`.
    """
    repeated = np.zeros(len(digests), dtype=np.bool_)
    num_groups = np.uint64(math.ceil(len(digests) / GROUP_PAIRS))
    for group in range(int(num_groups)):
        places = np.concatenate(
            [
                start
                + np.flatnonzero(digests[start : start + GROUP_PAIRS, 0] % num_groups == group)
                for start in range(0, len(digests), GROUP_PAIRS)
            ]
        )
        # Sorting keeps the order of equal ones, so the first of them is the first in the corpus.
        places = places[np.lexsort((digests[places, 0], digests[places, 1]))]
        equal = (digests[places[1:]] == digests[places[:-1]]).all(axis=1)
        repeated[places[1:][equal]] = True
    return repeated
