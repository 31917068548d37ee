"""What the members of the family come to: a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, stdev
from typing import Any

from members.speed import Speed

HEAD = (
    "| member | parameters | loss | BLEU | training | decoding | cache bytes a token |\n"
    "|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Learnt:
    """One training of a member.

    Attributes:
        seed: of the training.
        valid_loss: mean negative log likelihood of a validation token, in nats.
        test_bleu: of the test set.
        signature: of that score.
    """

    seed: int
    valid_loss: float
    test_bleu: float
    signature: str


@dataclass(frozen=True, slots=True)
class Row:
    """A member.

    Attributes:
        name: of the member.
        parameters: how many it has.
        cache_bytes: what it remembers of a target token.
        trainings: of it, one for each seed.
        turns: its speeds, one for each round; none where no speed was measured.
    """

    name: str
    parameters: int
    cache_bytes: int
    trainings: Sequence[Learnt]
    turns: Sequence[Speed]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def ratios(row: Row, base: Row) -> Speed | None:
    """Return the median over the rounds of a member's speeds as multiples of the base's."""
    if not row.turns:
        return None
    pairs = list(zip(row.turns, base.turns, strict=True))
    return Speed(
        median(own.training / other.training for own, other in pairs),
        median(own.decoding / other.decoding for own, other in pairs),
    )


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown; speeds are multiples of those of the first."""
    return "\n".join([HEAD, *(_line(row, ratios(row, rows[0])) for row in rows)])


def _line(row: Row, speed: Speed | None) -> str:
    cells = [
        row.name,
        f"{row.parameters:,}",
        _spread([learnt.valid_loss for learnt in row.trainings], ".3f"),
        _spread([learnt.test_bleu for learnt in row.trainings], ".2f"),
        "-" if speed is None else f"{speed.training:.2f}",
        "-" if speed is None else f"{speed.decoding:.2f}",
        f"{row.cache_bytes:,}",
    ]
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float], form: str) -> str:
    """Return the mean, and the standard deviation where there are several."""
    mean = format(fmean(values), form)
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):{form}}"
