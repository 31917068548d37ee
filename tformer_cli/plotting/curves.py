"""Curves of one or several runs: a panel for each quantity, one above the other."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tformer_cli.errors import UsageError
from tformer_cli.plotting.history import Axis, History
from tformer_cli.storage.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Panel:
    """What is drawn on one pair of axes.

    Attributes:
        label: the name and unit of its y.
        names: the curves on it, as `History` calls them.
        height: in panels of the least height.
    """

    label: str
    names: tuple[str, ...]
    height: float = 1.0


PANELS = (
    Panel("loss (nats a target token)", ("train_loss", "valid_loss"), height=2.2),
    Panel("validation BLEU", ("valid_bleu",), height=1.6),
    Panel("learning rate", ("learning_rate",)),
    Panel("gradient norm", ("grad_norm",)),
    Panel("target tokens/s", ("tokens_per_second",)),
)
X_LABELS: dict[Axis, str] = {
    "step": "optimiser steps",
    "tokens": "target tokens",
    "hours": "hours of optimiser steps",
}
# What a file name may end in, and what keeps the time of day out of such a file.
FORMATS: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}

# The colours of Okabe and Ito, which any colour vision tells apart, without yellow: it is too pale
# for a line. When they are used up, they come again, dashed and then dotted.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":")
GREY = "#777777"
# In letters of the legend: the width of the figure, and of a line and the blanks around it.
LEGEND_WIDTH = 96
HANDLE_WIDTH = 8
LOOK = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 8,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "svg.hashsalt": "tformer",
    "xtick.color": GREY,
    "xtick.labelcolor": "black",
    "ytick.color": GREY,
    "ytick.labelcolor": "black",
}


def draw(histories: Sequence[History], by: Axis) -> "Figure":
    """Return the curves of some runs, each run in its own colour.

    Args:
        histories: what the runs have reported.
        by: what their x is.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with _look():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        named = {name for history in histories for name in history.curves}
        panels = [panel for panel in PANELS if named.intersection(panel.names)]
        heights = [panel.height for panel in panels]
        figure = Figure(figsize=(8, 1 + 1.3 * sum(heights)), layout="constrained")
        grid = figure.subplots(
            len(panels), sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        for panel, axes in zip(panels, grid[:, 0], strict=True):
            _draw_panel(axes, panel, histories)
        lowest = grid[-1, 0]
        lowest.set_xlim(left=0)
        lowest.set_xlabel(X_LABELS[by])
        lowest.xaxis.set_major_locator(
            MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=by != "hours")
        )
        lowest.xaxis.set_major_formatter(_tick_label)
        figure.align_ylabels()
        _draw_legend(figure, histories)
    return figure


def save(figure: "Figure", file: Path) -> None:
    """Write a figure in the format that the name of the file ends in, one of `FORMATS`.

    Raises:
        StorageError: the system does not let it be written.
    """
    suffix = file.suffix.lower()
    with atomic_write(file) as temporary, _look():
        figure.savefig(temporary, format=suffix.removeprefix("."), metadata=FORMATS[suffix])


def _draw_panel(axes: "Axes", panel: Panel, histories: Sequence[History]) -> None:
    for number, history in enumerate(histories):
        for name in panel.names:
            if points := history.curves.get(name):
                x, y = zip(*points, strict=True)
                axes.plot(x, y, **_line(number, name, num_points=len(points)))
    axes.set_ylabel(panel.label)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_tick_label)


def _draw_legend(figure: "Figure", histories: Sequence[History]) -> None:
    """Name the runs by their colours, and training and validation by their lines."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_line(number, "")) for number in range(len(histories))]
    labels = _labels([history.run for history in histories])
    for name, label in (("train_loss", "training"), ("valid_loss", "validation")):
        if any(name in history.curves for history in histories):
            handles.append(Line2D([], [], **_line(0, name) | {"color": GREY}))
            labels.append(label)
    longest = max(map(len, labels))
    ncols = max(1, LEGEND_WIDTH // (longest + HANDLE_WIDTH))
    legend = figure.legend(handles, labels, loc="outside upper left", ncols=ncols)
    for text in legend.get_texts():
        # A name may hold dollar signs.
        text.set_parse_math(False)


def _line(number: int, name: str, *, num_points: int = 2) -> dict[str, Any]:
    """Return the look of a curve of the run with this number."""
    rounds, colour = divmod(number, len(COLORS))
    is_validation = name.startswith("valid")
    return {
        "color": COLORS[colour],
        "linestyle": DASHES[rounds % len(DASHES)],
        # A marker on an axis is as whole as any other.
        "clip_on": False,
        "zorder": 3,
        "linewidth": 1.6 if is_validation else 1.1,
        # No line goes through a single point.
        "marker": "o" if is_validation or num_points == 1 else "",
        "markersize": 4.5,
        "markeredgecolor": "white",
    }


def _labels(runs: Sequence[Path]) -> list[str]:
    """Return the names of the folders, or their paths where two have one name."""
    names = [run.resolve().name for run in runs]
    shared = {name for name, count in Counter(names).items() if count > 1}
    return [str(run) if name in shared else name for run, name in zip(runs, names, strict=True)]


def _tick_label(value: float, _position: float) -> str:
    return f"{value:,.10g}"


def _look() -> AbstractContextManager[None]:
    """Let matplotlib's defaults and `LOOK` hold for a while, whatever the user's settings are.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib import style
    except ModuleNotFoundError as error:
        raise UsageError(
            "tformer plot",
            "needs matplotlib, which is not installed",
            remedy="install it with: pip install 'tformer[plot]'",
        ) from error
    return style.context(LOOK, after_reset=True)
