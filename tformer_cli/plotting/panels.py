"""What stands on the axes of a picture: a map, a table of positions, what the colours mean."""

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tformer_cli.plotting.curves import COLORS, DASHES, GREY
from tformer_cli.plotting.sentence import Matrix, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap

# From a weight of 0 to one of 1; and from a negative number by zero to a positive one.
WEIGHTS = ("#ffffff", "#0072B2", "#06233a")
SIGNS = ("#D55E00", "#ffffff", "#0072B2")
# Of what a token may not look at.
UNSEEN = "#ebebeb"
LINES = "#dddddd"
# Names of lines that stand below each other.
MAX_NAMES = 16


def draw_heading(axes: "Axes", title: str, note: str) -> None:
    """Write a title, and below it what it means."""
    axes.set_axis_off()
    axes.text(0, 1, title, fontsize=11, fontweight="bold", va="top")
    axes.text(0, 0, note, color=GREY, va="top")


def draw_scale(axes: "Axes") -> None:
    """Draw what the colours of weights mean."""
    steps = [number / 255 for number in range(256)]
    axes.imshow([steps], cmap=_colormap(WEIGHTS), aspect="auto", extent=(0, 1, 0, 1))
    axes.set_yticks([])
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_title("weight: each row sums to 1; grey may not be looked at", fontsize=8, loc="left")


def draw_map(axes: "Axes", weights: Matrix, title: str) -> None:
    """Draw where one head looks, on axes of the shape of its map."""
    # What is below the least number above 0 is 0.
    colours, least = _colormap(WEIGHTS).with_extremes(under=UNSEEN), sys.float_info.min
    axes.imshow(weights, cmap=colours, vmin=least, vmax=1, aspect="auto", interpolation="none")
    axes.set_title(title, fontsize=8, loc="left", pad=3)
    bottom, right = len(weights) - 0.5, len(weights[0]) - 0.5
    rows, columns = ([edge + 0.5 for edge in range(len(side))] for side in (weights, weights[0]))
    axes.hlines(rows, -0.5, right, color=LINES, linewidth=0.25)
    axes.vlines(columns, -0.5, bottom, color=LINES, linewidth=0.25)
    axes.set_xlim(-0.5, right)
    axes.set_ylim(bottom, -0.5)


def write_labels(
    axes: "Axes",
    rows: Sequence[str],
    columns: Sequence[str],
    points: float,
    families: Sequence[str],
) -> None:
    """Write tokens beside and below a map.

    Args:
        axes: of the map.
        rows: tokens on the left, or none.
        columns: tokens below.
        points: size of the letters.
        families: fonts that have them.
    """
    axes.set_yticks(range(len(rows)), rows)
    # By its end, a token meets the map whatever font a viewer of the file has.
    axes.set_xticks(
        range(len(columns)), columns, rotation=90, rotation_mode="anchor", ha="right", va="center"
    )
    axes.tick_params(length=0, pad=2, labelsize=points)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_fontfamily([*families, "sans-serif"])
        # A token may hold dollar signs.
        label.set_parse_math(False)


def draw_table(axes: "Axes", table: Table) -> None:
    """Draw what stacks know of places."""
    if table.kind == "bias":
        _draw_bias(axes, table)
        return
    values = [[value or 0.0 for value in row] for row in table.values]
    most = max(abs(value) for row in values for value in row)
    image = axes.imshow(
        values,
        cmap=_colormap(SIGNS),
        vmin=-most,
        vmax=most,
        aspect="auto",
        interpolation="none",
    )
    axes.set_ylabel("place (tokens from the first)")
    if table.kind == "vectors":
        axes.set_xlabel("component of the vector")
    else:
        last = len(table.columns) - 1
        marks = sorted({round(part * last / 7) for part in range(8)})
        lengths = [2 * math.pi / table.columns[mark] for mark in marks]
        axes.set_xticks(marks, [f"{length:,.{0 if length > 99 else 1}f}" for length in lengths])
        axes.set_xlabel("tokens until a pair of components has turned once")
    axes.figure.colorbar(image, cax=axes.inset_axes((1.02, 0, 0.02, 1)))


def _draw_bias(axes: "Axes", table: Table) -> None:
    """Draw a line for each head."""
    names = [f"head {row}" for row in table.rows] or ["all heads"]
    for number, (name, values) in enumerate(zip(names, table.values, strict=True)):
        rounds, colour = divmod(number, len(COLORS))
        axes.plot(
            table.columns,
            [math.nan if value is None else value for value in values],
            label=name,
            linewidth=1.2,
            color=COLORS[colour],
            linestyle=DASHES[rounds % len(DASHES)],
        )
    axes.set_xlim(table.columns[0] - 0.5, table.columns[-1] + 0.5)
    axes.set_xlabel("tokens from the query to the key; negative is before it")
    axes.set_ylabel("added to the logit")
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    ncols = math.ceil(len(names) / MAX_NAMES)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), ncols=ncols)


def _colormap(stops: Sequence[str]) -> "LinearSegmentedColormap":
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("tformer", stops)
