"""Training curves of runs, read from their metrics and drawn one panel per quantity."""

import contextlib
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tformer_cli.errors import CheckpointError, UsageError, printable
from tformer_cli.storage.atomic import atomic_write, parse_json
from tformer_cli.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Axis = Literal["step", "tokens", "hours"]
Point = tuple[float, float]


class Panel(NamedTuple):
    label: str  # of the y axis
    names: tuple[str, ...]
    height: float = 1.0  # relative


PANELS = (
    Panel("loss (nats a target token)", ("train_loss", "valid_loss"), height=2.2),
    Panel("validation BLEU", ("valid_bleu",), height=1.6),
    Panel("learning rate", ("learning_rate",)),
    Panel("gradient norm", ("grad_norm",)),
    Panel("target tokens/s", ("tokens_per_second",)),
)
X_LABELS: dict[Axis, str] = {
    "step": "optimizer steps",
    "tokens": "target tokens",
    "hours": "hours of optimizer steps",
}
# File formats; without the metadata listed, equal pictures are equal files.
FIGURE_FORMATS: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}

# Okabe and Ito's colors, safe for any color vision, without yellow, which is too pale for a line.
# After the last one they repeat dashed, then dotted.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":")
GRAY = "#777777"
# In characters: the width of the legend, and of a line sample with its margins.
LEGEND_WIDTH = 96
HANDLE_WIDTH = 8
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRAY,
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
    "xtick.color": GRAY,
    "xtick.labelcolor": "black",
    "ytick.color": GRAY,
    "ytick.labelcolor": "black",
}


class History(NamedTuple):
    """The curves of a run by name, as points (x, y) in file order.

    Losses are in nats per target token without label smoothing. What was never logged is absent.
    """

    run: Path
    curves: dict[str, list[Point]]


def read_history(run: RunDirectory, by: Axis) -> History:
    """Read metrics.jsonl; tokens and hours are summed over the optimizer steps so far."""
    if not run.path.is_dir():
        remedy = "name the folder of a run, such as runs/demo"
        raise CheckpointError(str(run.path), "no such run folder", remedy=remedy)
    file = run.metrics_file
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line]
    curves: dict[str, list[Point]] = {}
    num_tokens, seconds = 0, 0.0
    for number, line in lines:
        try:
            report = parse_json(line)
            if report["kind"] == "train":
                # The log holds the quotient, so rounding restores the count.
                num_tokens += round(report["tokens_per_second"] * report["seconds"])
                seconds += report["seconds"]
            x = {"step": report["step"], "tokens": num_tokens, "hours": seconds / 3600}[by]
            values = curve_values(report)
        except (KeyError, TypeError, ValueError) as error:
            if number == lines[-1][0]:
                break  # cut short by a kill
            what = "is no report of a training"
            remedy = "remove the line to do without it"
            raise CheckpointError(f"{file}:{number}", what, remedy=remedy) from error
        for name, y in values.items():
            curves.setdefault(name, []).append((x, y))
    if not curves:
        remedy = "wait for the first one, or name another run"
        raise CheckpointError(str(file), "holds no report of a training", remedy=remedy)
    return History(run.path, curves)


def curve_values(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the y of each curve that a report continues."""
    match report["kind"]:
        case "train":
            return {
                # The logged loss is smoothed; this one compares with validation loss.
                "train_loss": math.log(report["perplexity"]),
                "learning_rate": report["learning_rate"],
                "grad_norm": report["grad_norm"],
                "tokens_per_second": report["tokens_per_second"],
            }
        case "valid":
            # Masked encoders have no BLEU.
            bleu = {"valid_bleu": report["bleu"]} if "bleu" in report else {}
            values = {"valid_loss": report["loss"], **bleu}
            # A model that has diverged has no loss.
            return {name: y for name, y in values.items() if y is not None and math.isfinite(y)}
        case _:
            return {}


def plot_runs(runs: Sequence[RunDirectory], by: Axis, file: Path | None) -> list[History]:
    """Return the histories of runs, and draw them into a file if there is one."""
    histories = [read_history(run, by) for run in runs]
    if file is not None:
        save_figure(draw_curves(histories, by), file)
    return histories


@contextlib.contextmanager
def style(parameters: dict[str, Any], where: str, remedy: str) -> Iterator[None]:
    """Apply matplotlib's defaults and `parameters` for a while, whatever the user has set."""
    try:
        from matplotlib import style as matplotlib_style
    except ModuleNotFoundError as error:
        what = "needs matplotlib, which is not installed"
        raise UsageError(where, what, remedy=remedy) from error
    with matplotlib_style.context(parameters, after_reset=True):
        yield


curves_style = style(STYLE, "tformer plot", "install it with: pip install 'tformer[plot]'")


@curves_style
def draw_curves(histories: Sequence[History], by: Axis) -> "Figure":
    """Return the curves of runs, one color per run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    names = {name for history in histories for name in history.curves}
    panels = [panel for panel in PANELS if names.intersection(panel.names)]
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
    steps = [1, 2, 2.5, 5, 10]
    lowest.xaxis.set_major_locator(MaxNLocator("auto", steps=steps, integer=by != "hours"))
    lowest.xaxis.set_major_formatter(_tick_label)
    figure.align_ylabels()
    _draw_legend(figure, histories)
    return figure


@curves_style
def save_figure(figure: "Figure", file: Path) -> None:
    """Write a figure in the format of the file name, one of `FIGURE_FORMATS`."""
    with atomic_write(file) as temporary:
        temporary.write_bytes(encoded(figure, file.suffix.lower()))


def encoded(figure: "Figure", suffix: str) -> bytes:
    """Return the content of a picture file."""
    content = io.BytesIO()
    figure.savefig(content, format=suffix.removeprefix("."), metadata=FIGURE_FORMATS[suffix])
    return content.getvalue()


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
    """Name the runs by color, training and validation by line."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_line(number, "")) for number in range(len(histories))]
    # Names need not be UTF-8.
    labels = list(map(printable, _labels([history.run for history in histories])))
    for name, label in (("train_loss", "training"), ("valid_loss", "validation")):
        if any(name in history.curves for history in histories):
            handles.append(Line2D([], [], **_line(0, name) | {"color": GRAY}))
            labels.append(label)
    ncols = max(1, LEGEND_WIDTH // (max(map(len, labels)) + HANDLE_WIDTH))
    legend = figure.legend(handles, labels, loc="outside upper left", ncols=ncols)
    for text in legend.get_texts():
        # Dollar signs in names are no formulas.
        text.set_parse_math(False)


def _line(number: int, name: str, *, num_points: int = 2) -> dict[str, Any]:
    """Return the line properties of a curve of run `number`."""
    repeats, color = divmod(number, len(COLORS))
    is_validation = name.startswith("valid")
    return {
        "color": COLORS[color],
        "linestyle": DASHES[repeats % len(DASHES)],
        # Markers on an axis are drawn whole.
        "clip_on": False,
        "zorder": 3,
        "linewidth": 1.6 if is_validation else 1.1,
        # A single point has no line.
        "marker": "o" if is_validation or num_points == 1 else "",
        "markersize": 4.5,
        "markeredgecolor": "white",
    }


def _labels(runs: Sequence[Path]) -> list[str]:
    """Return folder names, or paths where two folders share a name."""
    names = [run.resolve().name for run in runs]
    shared = {name for name, count in Counter(names).items() if count > 1}
    return [str(run) if name in shared else name for run, name in zip(runs, names, strict=True)]


def _tick_label(value: float, _position: float) -> str:
    return f"{value:,.10g}"
