"""How much of a held-out text training text contains.

Lines are equal if they are after NFKC normalization, case folding and collapsing whitespace.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tformer_cli.config.schema.data import Text
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import Problem

BLANK = 0
"""The key of a line without text."""

# Short sentences are in any two texts of a kind.
_TOLERATED = 0.01


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


def overlaps(
    training: Iterable[tuple[str, str]], held_out: Mapping[str, Text]
) -> dict[str, Overlap]:
    """Return how much of each held-out text some training pairs contain.

    Memory grows with the held-out texts alone; the pairs are read once.

    Raises:
        DataError: a text cannot be read.
    """
    rows = {
        name: [(normalized(s), normalized(t)) for s, t in read_texts([text])]
        for name, text in held_out.items()
    }
    pairs = {row for those in rows.values() for row in those if any(row)}
    sources, targets = ({pair[side] for pair in pairs} - {""} for side in (0, 1))
    seen_pairs, seen_sources, seen_targets = set[tuple[str, str]](), set[str](), set[str]()
    for pair in training:
        source, target = map(normalized, pair)
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


def overlap_warnings(
    training: Iterable[tuple[str, str]], held_out: Mapping[str, Text], unit: str
) -> Iterator[Problem]:
    """Yield which held-out texts some training pairs contain to a considerable part.

    Args:
        training: pairs of the training text.
        held_out: texts by what messages call them.
        unit: what messages call a pair.

    Raises:
        DataError: a text cannot be read.
    """
    for name, overlap in overlaps(training, held_out).items():
        repeated = max(overlap.pairs, overlap.sources, overlap.targets)
        if repeated > _TOLERATED * overlap.num_pairs:
            yield Problem(
                name,
                "is partly in data.train, so its scores are too high",
                f"{overlap.pairs:,} of {overlap.num_pairs:,} {unit}s, "
                f"{overlap.sources:,} sources, {overlap.targets:,} targets",
                "remove them from the training text",
            )


def normalized(line: str) -> str:
    """Return what equal lines have in common; nothing is left of a line without words."""
    is_normal = line.isascii() or unicodedata.is_normalized("NFKC", line)
    folded = (line if is_normal else unicodedata.normalize("NFKC", line)).casefold()
    return " ".join(folded.split())


def line_key(line: str) -> int:
    """Return a 64-bit hash of a line; that of a blank line is 0."""
    text = normalized(line)
    if not text:
        return BLANK
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
