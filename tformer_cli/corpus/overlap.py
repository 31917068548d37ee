"""Overlap of validation and test text with training text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tformer_cli.config.schema.text import Text
from tformer_cli.corpus.line_keys import normalized
from tformer_cli.corpus.reader import read_texts
from tformer_cli.errors import Problem, quantity

# Short sentences occur in any two texts of a domain.
_TOLERATED_OVERLAP = 0.01

_Key = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Number of held-out pairs, and of those whose pair, source or target is in training text."""

    num_pairs: int
    pairs: int
    sources: int
    targets: int


def overlaps(
    training: Iterable[tuple[str, str]], held_out: Mapping[str, Text]
) -> dict[str, Overlap]:
    """Return the overlap of each held-out text with training pairs, which are read once.

    Memory grows with the held-out texts only.
    """
    rows = {
        name: [_overlap_keys(pair) for pair in read_texts([text])]
        for name, text in held_out.items()
    }
    wanted = {key for keys in rows.values() for row in keys for key in row if any(key)}
    seen = set[_Key]()
    for pair in training:
        seen.update(wanted.intersection(_overlap_keys(pair)))

    def num_seen(keys: Sequence[Sequence[_Key]], which: int) -> int:
        return sum(row[which] in seen for row in keys)

    return {
        name: Overlap(len(keys), *(num_seen(keys, which) for which in range(3)))
        for name, keys in rows.items()
    }


def _overlap_keys(pair: tuple[str, str]) -> tuple[_Key, _Key, _Key]:
    """Return a key of the pair, of its source, and of its target."""
    source, target = map(normalized, pair)
    return (source, target), (source, None), (None, target)


def overlap_warnings(
    training: Iterable[tuple[str, str]], held_out: Mapping[str, Text], unit: str
) -> Iterator[Problem]:
    """Yield a warning for each held-out text with considerable overlap; `unit` names a pair."""
    for name, overlap in overlaps(training, held_out).items():
        repeated = max(overlap.pairs, overlap.sources, overlap.targets)
        if repeated > _TOLERATED_OVERLAP * overlap.num_pairs:
            yield Problem(
                name,
                "is partly in data.train, so its scores are too high",
                f"{overlap.pairs:,} of {quantity(overlap.num_pairs, unit)}, "
                f"{quantity(overlap.sources, 'source')}, {quantity(overlap.targets, 'target')}",
                "remove them from the training text",
            )
