"""Attention maps and position tables as an HTML page, or as a picture by matplotlib."""

import contextlib
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import category, east_asian_width

from tformer_cli.errors import Problem, UsageError
from tformer_cli.plotting import curves
from tformer_cli.plotting.attention_maps import AttentionMaps, PartMaps, PositionTable
from tformer_cli.plotting.curves import COLORS, DASHES, GRAY
from tformer_cli.plotting.page import filled_page
from tformer_cli.storage.atomic import atomic_write, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure, SubFigure

MAP_TEXTS = {
    "encoder": ("Encoder self-attention", "rows: source tokens; columns: tokens attended to"),
    "decoder": ("Decoder self-attention", "rows: tokens read; columns: tokens attended to"),
    "cross": ("Cross-attention", "rows: tokens written; columns: source tokens attended to"),
}
TABLE_TEXTS = {
    "vectors": ("Position vectors", "added to the token embedding at each position"),
    "turns": ("Rotary embedding", "cosine of the rotation of each pair of components"),
    "bias": ("Attention bias by distance", "added to attention logits; lines end at masked keys"),
}
# Gradients: attention weights from 0 to 1; values from negative through 0 to positive.
WEIGHTS = ("#ffffff", "#0072B2", "#06233a")
SIGNS = ("#D55E00", "#ffffff", "#0072B2")
MASKED_COLOR = "#ebebeb"
LINES = "#dddddd"
SPACE = "␣"
# Control characters, written as in Python.
ESCAPES = {code: ascii(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0))}
MAX_LABEL_LENGTH = 24

SUFFIXES = (".html", ".png", ".svg")
# Sizes in inches.
MAP_SIZE = 4.4
MIN_CELL, MAX_CELL = 0.11, 0.2
MIN_MAP_WIDTH = 1.1
MAX_WIDTH = 24.0
GAP, MARGIN = 0.2, 0.08
TITLE, HEADING, SCALE = 0.25, 0.8, 0.7
SCALE_WIDTH, TABLE_WIDTH, TABLE_HEIGHT = 3.0, 8.5, 4.0
POINTS_PER_INCH, DOTS_PER_INCH = 72, 150
# Image viewers fail beyond this.
MAX_DOTS = 120_000_000
MAX_MISSING = 24
MAX_LEGEND_ROWS = 16
HEATMAP_STYLE = curves.STYLE | {
    "axes.grid": False,
    "axes.linewidth": 0.5,
    "axes.spines.right": True,
    "axes.spines.top": True,
    "legend.fontsize": 7,
    "svg.fonttype": "none",
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}
# In SVG, tokens keep their own writing direction and their spaces.
SVG_STYLE = "text{unicode-bidi:plaintext;white-space:pre}"

BUNDLED_FONT = "DejaVu Sans"
# Joiners and combining marks have no glyph of their own.
UNDRAWN = {"Cf", "Mn"}


@contextlib.contextmanager
def heatmap_style() -> Iterator[None]:
    remedy = "write .html, or install it with: pip install 'tformer[plot]'"
    with curves.style(HEATMAP_STYLE, "tformer heatmap", remedy), warnings.catch_warnings():
        # `save` reports them all at once.
        warnings.filterwarnings("ignore", r"Glyph \d+", UserWarning)
        yield


def page(maps: AttentionMaps) -> str:
    """Return an HTML page to choose layers and heads and read single weights."""
    content = maps.as_plain()
    for part in content["maps"]:
        part["title"], part["note"] = MAP_TEXTS[part["part"]]
    for plain, table in zip(content["positions"], maps.positions, strict=True):
        plain["title"] = table_title(table)
        plain["note"] = TABLE_TEXTS[table.kind][1]
    content |= {"weights": WEIGHTS, "signs": SIGNS, "masked": MASKED_COLOR}
    content |= {"colors": COLORS, "space": SPACE}
    return filled_page("heatmap", content, source=maps.source, target=maps.target or "")


def label(token: str) -> str:
    """Return a token as one short line; spaces alone become visible."""
    if not token.strip(" "):
        return SPACE * len(token)
    line = token.translate(ESCAPES)
    return line if len(line) <= MAX_LABEL_LENGTH else f"{line[: MAX_LABEL_LENGTH - 1]}…"


def labels(maps: AttentionMaps) -> list[str]:
    """Return the labels of all tokens."""
    return [label(token) for part in maps.maps for token in (*part.rows, *part.columns)]


def table_title(table: PositionTable) -> str:
    """Return the title of a table with the stacks that have it."""
    return f"{TABLE_TEXTS[table.kind][0]} of the {' and the '.join(table.stacks)}"


def pick_fonts(texts: Iterable[str]) -> tuple[list[str], str]:
    """Return font families to try in order, and the characters that no font has.

    These are the bundled font, and as few installed ones as cover the rest, such as CJK.
    """
    characters = dict.fromkeys("".join(texts))
    files = _font_files()
    families = [BUNDLED_FONT]
    missing = {character for character in characters if category(character) not in UNDRAWN}
    missing -= _characters(files[BUNDLED_FONT])
    while missing:
        lacks = {family: missing - _characters(file) for family, file in files.items()}
        best = min(lacks, key=lambda family: (len(lacks[family]), family))
        if lacks[best] == missing:
            break
        families.append(best)
        missing = lacks[best]
    return families, "".join(character for character in characters if character in missing)


def _font_files() -> dict[str, str]:
    """Return the file of each upright font of regular weight, by family."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import fontManager

    return {
        font.name: font.fname
        for font in fontManager.ttflist
        if font.style == "normal"
        and font.weight == 400
        # matplotlib's other fonts are for formulas, or draw boxes for all characters.
        and (font.name == BUNDLED_FONT or not font.fname.startswith(get_data_path()))
    }


@cache
def _characters(file: str) -> frozenset[str]:
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(file).get_charmap()))
    except (RuntimeError, OSError):
        # matplotlib cannot draw bitmap fonts.
        return frozenset()


class _Grid(NamedTuple):
    """Layout of a part: one line of maps per layer, or more if a line would be too wide."""

    maps: PartMaps
    num_beside: int
    num_lines: int  # per layer
    points: float  # font size of the labels
    width: float
    height: float

    @classmethod
    def of(cls, maps: PartMaps) -> "_Grid":
        num_rows, num_columns = len(maps.rows), len(maps.columns)
        cell = min(max(MAP_SIZE / max(num_rows, num_columns), MIN_CELL), MAX_CELL)
        points = min(0.75 * cell * POINTS_PER_INCH, 8.0)
        left, below = (
            max(map(_num_widths, tokens)) * points / POINTS_PER_INCH
            for tokens in (maps.rows, maps.columns)
        )
        slot = max(cell * num_columns, MIN_MAP_WIDTH) + GAP
        num_lines = math.ceil(len(maps.heads) / max(1, int((MAX_WIDTH - left) / slot)))
        num_beside = math.ceil(len(maps.heads) / num_lines)
        line = TITLE + cell * num_rows + below + GAP
        height = HEADING + line * num_lines * len(maps.layers)
        return cls(maps, num_beside, num_lines, points, left + num_beside * slot, height)


def _num_widths(token: str) -> float:
    """Return the length of a label in widths of an em."""
    wide = sum(east_asian_width(character) in "WF" for character in label(token))
    return wide + 0.65 * (len(label(token)) - wide)


@heatmap_style()
def draw_heatmap(maps: AttentionMaps) -> "Figure":
    """Return a picture: a grid of layers and heads for each part, then the position tables."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    grids = [_Grid.of(part) for part in maps.maps]
    heights = [SCALE] * bool(grids) + [grid.height for grid in grids]
    heights += [TABLE_HEIGHT] * len(maps.positions)
    width = max([TABLE_WIDTH, *(grid.width for grid in grids)])
    height = sum(heights)
    if width * height * DOTS_PER_INCH**2 > MAX_DOTS:
        what = f"would have more than {MAX_DOTS // 10**6} million dots"
        got = f"{round(width * DOTS_PER_INCH):,} x {round(height * DOTS_PER_INCH):,}"
        remedy = "choose a part, a layer or a head, or write .html"
        raise UsageError("the picture", what, got=got, remedy=remedy)
    layout = ConstrainedLayoutEngine(w_pad=MARGIN, h_pad=MARGIN)
    figure = Figure(figsize=(width, height), layout=layout)
    sections = iter(figure.subfigures(len(heights), height_ratios=heights, squeeze=False)[:, 0])
    families = [*pick_fonts(labels(maps))[0], "sans-serif"]
    if grids:
        draw_scale(_left(next(sections), SCALE_WIDTH, width).subplots())
    for grid in grids:
        _draw_maps(_left(next(sections), grid.width, width), grid, families)
    for table in maps.positions:
        section = _left(next(sections), TABLE_WIDTH, width)
        _write_heading(section, table_title(table), TABLE_TEXTS[table.kind][1])
        draw_table(section.subplots(), table)
    return figure


def _left(section: "SubFigure", width: float, full_width: float) -> "SubFigure":
    ratios = (width, max(full_width - width, 1e-3))
    left: SubFigure = section.subfigures(1, 2, width_ratios=ratios, squeeze=False)[0, 0]
    return left


def _write_heading(section: "SubFigure", title: str, note: str) -> None:
    x = MARGIN * section.get_figure(root=True).dpi / section.bbox.width
    section.suptitle(title, x=x, ha="left", fontsize=11, fontweight="bold")
    section.supxlabel(note, x=x, ha="left", fontsize=8, color=GRAY)


def draw_scale(axes: "Axes") -> None:
    from matplotlib.cm import ScalarMappable

    colors = ScalarMappable(cmap=_gradient(WEIGHTS))
    axes.figure.colorbar(colors, cax=axes, orientation="horizontal")
    axes.set_title("attention weight: rows sum to 1; gray is masked", fontsize=8, loc="left")


def _draw_maps(section: "SubFigure", grid: _Grid, families: Sequence[str]) -> None:
    maps = grid.maps
    _write_heading(section, *MAP_TEXTS[maps.part])
    rows, columns = ([label(token) for token in side] for side in (maps.rows, maps.columns))
    lines = section.subplots(len(maps.layers) * grid.num_lines, grid.num_beside, squeeze=False)
    per_layer = lines.reshape(len(maps.layers), -1)
    for layer, weights, all_axes in zip(maps.layers, maps.weights, per_layer, strict=True):
        for index, (head, axes) in enumerate(zip(maps.heads, all_axes, strict=False)):
            draw_map(axes, weights[index], f"layer {layer}, head {head}")
            own_rows = [] if index % grid.num_beside else rows
            _write_tokens(axes, own_rows, columns, grid.points, families)
        for axes in all_axes[len(maps.heads) :]:
            axes.set_axis_off()


def draw_map(axes: "Axes", weights: Any, title: str) -> None:
    """Draw the (rows, columns) weights of one head; a weight of exactly 0 is masked."""
    colors = _gradient(WEIGHTS).with_extremes(under=MASKED_COLOR)
    least = sys.float_info.min
    # In single precision `least` would be 0.
    axes.imshow(weights.astype(float), cmap=colors, vmin=least, vmax=1, interpolation="none")
    axes.set_anchor("NW")
    axes.set_title(title, fontsize=8, loc="left", pad=3)
    bottom, right = (length - 0.5 for length in weights.shape)
    rows, columns = ([edge + 0.5 for edge in range(length)] for length in weights.shape)
    axes.hlines(rows, -0.5, right, color=LINES, linewidth=0.25)
    axes.vlines(columns, -0.5, bottom, color=LINES, linewidth=0.25)
    axes.set(xlim=(-0.5, right), ylim=(bottom, -0.5))


def _write_tokens(
    axes: "Axes",
    rows: Sequence[str],
    columns: Sequence[str],
    points: float,
    families: Sequence[str],
) -> None:
    axes.set_yticks(range(len(rows)), rows)
    # The end of a token touches the map, whichever font a viewer of an SVG has.
    axes.set_xticks(
        range(len(columns)), columns, rotation=90, rotation_mode="anchor", ha="right", va="center"
    )
    axes.tick_params(length=0, pad=2, labelsize=points)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_fontfamily(families)
        # Dollar signs in tokens are no formulas.
        text.set_parse_math(False)


def draw_table(axes: "Axes", table: PositionTable) -> None:
    """Draw a position table."""
    if table.kind == "bias":
        _draw_bias(axes, table)
        return
    highest = abs(table.values).max()
    colors = {"cmap": _gradient(SIGNS), "vmin": -highest, "vmax": highest}
    image = axes.imshow(table.values, **colors, aspect="auto", interpolation="none")
    axes.set_ylabel("position")
    if table.kind == "vectors":
        axes.set_xlabel("component")
    else:
        last = len(table.columns) - 1
        marks = sorted({round(part * last / 7) for part in range(8)})
        lengths = [2 * math.pi / table.columns[mark] for mark in marks]
        axes.set_xticks(marks, [f"{length:,.{0 if length > 99 else 1}f}" for length in lengths])
        axes.set_xlabel("wavelength of a pair of components (tokens)")
    axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=40)


def _draw_bias(axes: "Axes", table: PositionTable) -> None:
    """Draw a line for each head, with gaps at hidden keys."""
    names = [f"head {row}" for row in table.rows] or ["all heads"]
    for number, (name, values) in enumerate(zip(names, table.values.tolist(), strict=True)):
        repeats, color = divmod(number, len(COLORS))
        dashes = DASHES[repeats % len(DASHES)]
        finite = [value if math.isfinite(value) else math.nan for value in values]
        axes.plot(table.columns, finite, dashes, color=COLORS[color], label=name, linewidth=1.2)
    axes.set_xlim(table.columns[0] - 0.5, table.columns[-1] + 0.5)
    axes.set_xlabel("tokens from query to key; negative is before the query")
    axes.set_ylabel("bias")
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    ncols = math.ceil(len(names) / MAX_LEGEND_ROWS)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), ncols=ncols)


def _gradient(stops: Sequence[str]) -> "LinearSegmentedColormap":
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("tformer", stops)


def save_heatmap(maps: AttentionMaps, file: Path) -> Problem | None:
    """Write a page or a picture, by the suffix of the file, one of `SUFFIXES`.

    The problem is that of characters that a PNG shows as boxes; an SVG holds text.
    """
    suffix = file.suffix.lower()
    if suffix == ".html":
        write_text(file, page(maps))
        return None
    with heatmap_style():
        picture = curves.encoded(draw_heatmap(maps), suffix)
    if suffix == ".svg":
        picture = picture.replace(b"</style>", f"{SVG_STYLE}</style>".encode(), 1)
    with atomic_write(file) as temporary:
        temporary.write_bytes(picture)
    _, missing = pick_fonts(labels(maps))
    if suffix != ".png" or not missing:
        return None
    what = "has boxes for characters that no installed font has"
    remedy = "install a font that has them, or write .svg or .html"
    return Problem(str(file), what, missing[:MAX_MISSING], remedy)
