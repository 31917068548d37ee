"""How much of a held-out text training text contains.

Lines are equal if they are after NFKC normalization, case folding and collapsing whitespace. Only
a 64-bit hash of each is kept in memory.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tformer_cli.config.schema.data import Text
from tformer_cli.corpus.reader import as_pair, read_rows

BLANK = 0
"""The key of a line without text."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much of a held-out text training text contains.

    Attributes:
        num_pairs: of the held-out text.
        pairs: of these, those that are also training pairs.
        sources: of these, those whose source is also a training source.
        targets: of these, those whose target is also a training target.
    """

    num_pairs: int
    pairs: int
    sources: int
    targets: int


def overlaps(training: Iterable[Text], held_out: Mapping[str, Text]) -> dict[str, Overlap]:
    """Return how much of each held-out text the training text contains.

    Memory grows with the held-out texts alone; the training text is read once.

    Raises:
        DataError: a text cannot be read.
    """
    rows = {
        name: [(line_key(s), line_key(t)) for s, t in map(as_pair, read_rows(text))]
        for name, text in held_out.items()
    }
    pairs = {row for those in rows.values() for row in those if row != (BLANK, BLANK)}
    sources, targets = ({pair[side] for pair in pairs} - {BLANK} for side in (0, 1))
    seen_pairs, seen_sources, seen_targets = set[tuple[int, int]](), set[int](), set[int]()
    for text in training:
        for pair in map(as_pair, read_rows(text)):
            source, target = map(line_key, pair)
            if source in sources:
                seen_sources.add(source)
            if target in targets:
                seen_targets.add(target)
            if (source, target) in pairs:
                seen_pairs.add((source, target))
    return {
        name: Overlap(
            num_pairs=len(those),
            pairs=sum(row in seen_pairs for row in those),
            sources=sum(source in seen_sources for source, _ in those),
            targets=sum(target in seen_targets for _, target in those),
        )
        for name, those in rows.items()
    }


def line_key(line: str) -> int:
    """Return a 64-bit hash of a line; that of a blank line is 0."""
    normalized = line if line.isascii() else unicodedata.normalize("NFKC", line)
    words = normalized.casefold().split()
    if not words:
        return BLANK
    digest = hashlib.blake2b(" ".join(words).encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
