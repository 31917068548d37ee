"""What the trainings of quality.py come to: minutes to a score, a table, and a picture."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tformer_cli.errors import UsageError
from tformer_cli.plotting.curves import COLORS, DASHES, GRAY, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# In points of BLEU, and in minutes of optimiser steps.
THRESHOLDS = (30, 35, 38, 40)
MARKS = (60, 120)


@dataclass(frozen=True, slots=True)
class Point:
    """A checkpoint that was the best on the validation text in its time.

    Attributes:
        minutes: of optimiser steps until then.
        wall_minutes: of everything until then, validations and repeated steps included.
        step: optimiser steps taken.
        valid_score: validation BLEU or negative loss, which chose it.
        test_bleu: its score on the test set, which chose nothing.
    """

    minutes: float
    wall_minutes: float
    step: int
    valid_score: float
    test_bleu: float


@dataclass(frozen=True, slots=True)
class Course:
    """One training.

    Attributes:
        contestant: who learnt.
        title: what tables and pictures call it.
        seed: of the training.
        parameters: how many are trained.
        optimizer: its kind.
        learning_rate: the peak.
        curve: the best checkpoints in their order.
        signature: of their scores; None where there is none.
        steps: optimiser steps in all.
        minutes: of optimiser steps in all, but for those beyond the time allowed.
        wall_minutes: of everything.
        is_finished: whether it took all its steps in that time.
        environment: what it ran on last.
    """

    contestant: str
    title: str
    seed: int
    parameters: int
    optimizer: str
    learning_rate: float
    curve: tuple[Point, ...]
    signature: str | None
    steps: int
    minutes: float
    wall_minutes: float
    is_finished: bool
    environment: dict[str, str]

    def minutes_to(self, bleu: float) -> float | None:
        """Return when the best checkpoint first had a score; None if that never came."""
        return next((point.minutes for point in self.curve if point.test_bleu >= bleu), None)

    def bleu_at(self, minutes: float) -> float | None:
        """Return what the best checkpoint had at a time; None if there was none, or no such time.

        What finished earlier stays as it is.
        """
        if self.minutes < minutes and not self.is_finished:
            return None
        scores = [point.test_bleu for point in self.curve if point.minutes <= minutes]
        return scores[-1] if scores else None

    def as_json(self) -> dict[str, Any]:
        """Return it with its figures as plain data."""
        return asdict(self) | {
            "minutes_to": {str(bleu): self.minutes_to(bleu) for bleu in THRESHOLDS},
            "bleu_at": {str(minutes): self.bleu_at(minutes) for minutes in MARKS},
        }


def table(courses: Sequence[Course]) -> str:
    """Return the figures of each training as lines to read."""
    lines = [["minutes until BLEU", "seed"]]
    lines[0] += [f">= {bleu}" for bleu in THRESHOLDS]
    lines[0] += [f"at {minutes}" for minutes in MARKS]
    lines[0] += ["steps", "minutes", "wall"]
    for course in courses:
        cells = [course.title, str(course.seed)]
        cells += [_cell(course.minutes_to(bleu), ".1f") for bleu in THRESHOLDS]
        cells += [_cell(course.bleu_at(minutes), ".2f") for minutes in MARKS]
        cells += [f"{course.steps:,}", f"{course.minutes:.1f}", f"{course.wall_minutes:.1f}"]
        lines.append(cells)
    return "\n".join(
        f"{title:<20}" + "".join(f"{cell:>9}" for cell in cells) for title, *cells in lines
    )


def check_drawing() -> None:
    """Make sure that pictures can be drawn.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError(
            "--output",
            "needs matplotlib, which is not installed",
            remedy="pip install 'tformer[plot]'",
        ) from None


def draw(courses: Sequence[Course], test_set: str) -> "Figure":
    """Return the curves of some trainings: a colour a contestant, a dash a seed.

    What holds until the next point is a step; the last one holds to the end of the training.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    contestants = list(dict.fromkeys(course.contestant for course in courses))
    seeds = list(dict.fromkeys(course.seed for course in courses))
    with style.context(STYLE, after_reset=True):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for course in courses:
            points = [(point.minutes, point.test_bleu) for point in course.curve]
            ends = [(course.minutes, points[-1][1])] if points else []
            axes.plot(
                [x for x, _ in points + ends],
                [y for _, y in points + ends],
                drawstyle="steps-post",
                marker="o",
                markersize=3.5,
                markevery=slice(len(points)),
                color=COLORS[contestants.index(course.contestant) % len(COLORS)],
                linestyle=DASHES[seeds.index(course.seed) % len(DASHES)],
                label=f"{course.title}, seed {course.seed}",
                zorder=3,
            )
        for bleu in THRESHOLDS:
            axes.axhline(bleu, color=GRAY, linewidth=0.8, linestyle=(0, (1, 3)), zorder=2)
        axes.set_yticks(sorted({0, 10, 20, *THRESHOLDS}))
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minutes of optimiser steps")
        axes.set_ylabel(f"BLEU on {test_set}")
        axes.legend(loc="lower right")
    return figure


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
