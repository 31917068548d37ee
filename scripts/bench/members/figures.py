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


def ratios(rows: Sequence[Row]) -> list[Speed | None]:
    """Return the speeds of members as multiples of those of the first.

    Each turn is divided by the median of its round, for the weather changes from round to round,
    and of a member the median of that counts: so one bad turn, of the first member too, changes
    nothing.
    """
    if not rows[0].turns:
        return [None for _ in rows]
    training, decoding = (
        _relative([[getattr(turn, name) for turn in row.turns] for row in rows])
        for name in ("training", "decoding")
    )
    return [Speed(*pair) for pair in zip(training, decoding, strict=True)]


def _relative(speeds: Sequence[Sequence[float]]) -> list[float]:
    """Return one number for each row of speeds, a column a round; that of the first row is 1."""
    weather = [median(turns) for turns in zip(*speeds, strict=True)]
    found = [
        median(speed / usual for speed, usual in zip(row, weather, strict=True)) for row in speeds
    ]
    return [number / found[0] for number in found]


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown; speeds are multiples of those of the first."""
    return "\n".join([HEAD, *map(_line, rows, ratios(rows))])


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
