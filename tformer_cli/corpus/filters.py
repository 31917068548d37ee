"""Which training pairs are left out, and how many were."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tformer_cli.config.schema import FilterConfig


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

    def __str__(self) -> str:
        reasons = {
            "empty": self.empty,
            "too long": self.too_long,
            "of unequal length": self.ratio,
            "duplicate": self.duplicate,
        }
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        pairs = "pair" if self.seen == 1 else "pairs"
        kept = f"{self.seen:,} {pairs}: {self.kept:,} kept"
        return f"{kept}; dropped {dropped}" if dropped else kept


class PairFilter:
    """Decides about one pair after the other, and keeps count in `report`."""

    def __init__(self, config: FilterConfig) -> None:
        self.config = config
        self.report = FilterReport()
        self._seen: set[bytes] = set()

    def __call__(
        self,
        source_ids: Sequence[int],
        target_ids: Sequence[int],
        source_line: str,
        target_line: str,
    ) -> bool:
        """Return whether the pair is kept.

        Args:
            source_ids: tokens of the source, without special ones; lengths count these.
            target_ids: likewise.
            source_line: the text of the source; duplicates are equal in both texts.
            target_line: likewise.
        """
        shorter, longer = sorted((len(source_ids), len(target_ids)))
        max_ratio = self.config.max_ratio
        if shorter == 0:
            self.report.empty += 1
        elif longer > self.config.max_length:
            self.report.too_long += 1
        elif max_ratio is not None and longer > max_ratio * shorter:
            self.report.ratio += 1
        elif self.config.drop_duplicates and self._is_repeated(source_line, target_line):
            self.report.duplicate += 1
        else:
            self.report.kept += 1
            return True
        return False

    def _is_repeated(self, source_line: str, target_line: str) -> bool:
        # 16 bytes a pair, whatever its length: among a billion pairs any two collide with
        # probability 1.5e-21. No line holds the LF between the two.
        digest = hashlib.blake2b(f"{source_line}\n{target_line}".encode(), digest_size=16).digest()
        if digest in self._seen:
            return True
        self._seen.add(digest)
        return False
