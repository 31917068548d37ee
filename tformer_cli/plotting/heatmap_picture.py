"""Attention maps and tables of positions in one picture, by matplotlib."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tformer_cli.errors import Problem, UsageError
from tformer_cli.plotting import panels
from tformer_cli.plotting.curves import GREY
from tformer_cli.plotting.fonts import chosen_fonts
from tformer_cli.plotting.sentence import (
    MAP_NOTES,
    MAP_TITLES,
    TABLE_NOTES,
    Maps,
    Sentence,
    Table,
    labels,
    shown,
    table_title,
)
from tformer_cli.storage.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What a file name may end in, and what keeps the time of day out of such a file.
FORMATS: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}}

# Lengths are in inches.
MARGIN = 0.25
GAP = 0.2
HEADING = 0.3
SCALE_WIDTH, SCALE_HEIGHT = 3.0, 0.12
# A map has this size, but cells neither too small for a label nor ungainly.
MAP = 4.4
CELLS = (0.11, 0.2)
# Wide enough for a short title above.
MIN_WIDTH = 1.1
MAX_WIDTH = 24.0
TABLE_WIDTH, TABLE_HEIGHT = 7.0, 2.6
# For the numbers and the name of an axis, and for what stands beside a table.
AXIS = 0.6
BESIDE = 1.1
DOTS_AN_INCH = 150
# More than this no viewer opens gladly.
MAX_DOTS = 120_000_000
# Of characters that are missing.
MAX_NAMED = 24
# Fonts are in points, of which an inch has 72.
MAX_LABEL = 8.0
LOOK = {
    "axes.edgecolor": GREY,
    "axes.labelsize": 8,
    "axes.linewidth": 0.5,
    "font.size": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "savefig.dpi": DOTS_AN_INCH,
    "svg.fonttype": "none",
    "svg.hashsalt": "tformer",
    "xtick.color": GREY,
    "xtick.labelcolor": "black",
    "xtick.labelsize": 7,
    "ytick.color": GREY,
    "ytick.labelcolor": "black",
    "ytick.labelsize": 7,
}
# In an SVG a token has the direction of its own script, and its blanks.
SVG_TEXT = "text{unicode-bidi:plaintext;white-space:pre}"


@dataclass(frozen=True, slots=True)
class Box:
    """A place on the picture, in inches from its left upper corner.

    Attributes:
        left: edge.
        top: edge.
        width: of it.
        height: of it.
        draw: puts something there.
    """

    left: float
    top: float
    width: float
    height: float
    draw: "Callable[[Axes], None]"


class Sheet:
    """Boxes below each other.

    Attributes:
        boxes: all of them.
        width: of the sheet so far.
        top: where the next one begins.
    """

    def __init__(self, families: Sequence[str]) -> None:
        """Begin an empty sheet, whose tokens are written with these fonts."""
        self.families = families
        self.boxes: list[Box] = []
        self.width, self.top = 2 * MARGIN + TABLE_WIDTH, MARGIN

    def add_scale(self) -> None:
        """Add what the colours of weights mean."""
        self._add(MARGIN, SCALE_WIDTH, SCALE_HEIGHT, panels.draw_scale)
        self.top += SCALE_HEIGHT + AXIS

    def add_maps(self, maps: Maps) -> None:
        """Add the maps of one kind of attention, a line of heads or more for each layer."""
        self._add_heading(MAP_TITLES[maps.part], MAP_NOTES[maps.part])
        rows, columns = ([shown(token) for token in side] for side in (maps.rows, maps.columns))
        cell = min(max(MAP / max(len(rows), len(columns)), CELLS[0]), CELLS[1])
        points = min(cell * 72 * 0.75, MAX_LABEL)
        left = MARGIN + self._longest(rows, points)
        below = self._longest(columns, points)
        width, height = cell * len(columns), cell * len(rows)
        slot = max(width, MIN_WIDTH) + GAP
        num_lines = math.ceil(len(maps.heads) / max(1, int((MAX_WIDTH - left) / slot)))
        num_beside = math.ceil(len(maps.heads) / num_lines)
        self.width = max(self.width, left + num_beside * slot + MARGIN)

        def draw(axes: "Axes", place: int, layer: int) -> None:
            title = f"layer {maps.layers[layer]}, head {maps.heads[place]}"
            panels.draw_map(axes, maps.weights[layer][place], title)
            # Those beside each other have the same rows.
            own_rows = [] if place % num_beside else rows
            panels.write_labels(axes, own_rows, columns, points, self.families)

        for layer in range(len(maps.layers)):
            for first in range(0, len(maps.heads), num_beside):
                for place in range(first, min(first + num_beside, len(maps.heads))):
                    draw_this = partial(draw, place=place, layer=layer)
                    self._add(left + (place - first) * slot, width, height, draw_this)
                self.top += height + below + 2 * GAP

    def add_table(self, table: Table) -> None:
        """Add what stacks know of places."""
        self._add_heading(table_title(table), TABLE_NOTES[table.kind])
        draw = partial(panels.draw_table, table=table)
        self._add(MARGIN + AXIS, TABLE_WIDTH, TABLE_HEIGHT, draw)
        self.width = max(self.width, MARGIN + AXIS + TABLE_WIDTH + BESIDE)
        self.top += TABLE_HEIGHT + AXIS + GAP

    def _add_heading(self, title: str, note: str) -> None:
        draw = partial(panels.draw_heading, title=title, note=note)
        self._add(MARGIN, TABLE_WIDTH, HEADING * 0.7, draw)
        self.top += HEADING + 2 * GAP

    def _add(
        self, left: float, width: float, height: float, draw: "Callable[[Axes], None]"
    ) -> None:
        self.boxes.append(Box(left, self.top, width, height, draw))

    def _longest(self, texts: Sequence[str], points: float) -> float:
        """Return how long the longest text is, the blank beside it included."""
        from matplotlib.font_manager import FontProperties
        from matplotlib.textpath import text_to_path

        font = FontProperties(family=list(self.families), size=points)
        sizes = (text_to_path.get_text_width_height_descent(one, font, False) for one in texts)
        return max(width for width, _, _ in sizes) / 72 + 0.08


def draw(sentence: Sentence) -> "Figure":
    """Return a picture of a sentence's maps and tables.

    Raises:
        UsageError: matplotlib is not installed, or the picture would be too large.
    """
    with _look():
        from matplotlib.figure import Figure

        sheet = Sheet(chosen_fonts(labels(sentence)).families)
        if sentence.maps:
            sheet.add_scale()
        for maps in sentence.maps:
            sheet.add_maps(maps)
        for table in sentence.positions:
            sheet.add_table(table)
        width, height = sheet.width, sheet.top
        if width * height * DOTS_AN_INCH**2 > MAX_DOTS:
            raise UsageError(
                "the picture",
                f"would have more than {MAX_DOTS // 10**6} million dots",
                got=f"{round(width * DOTS_AN_INCH):,} x {round(height * DOTS_AN_INCH):,}",
                remedy="choose a part, a layer or a head, or write .html",
            )
        figure = Figure(figsize=(width, height))
        for box in sheet.boxes:
            bottom = height - box.top - box.height
            place = (box.left / width, bottom / height, box.width / width, box.height / height)
            box.draw(figure.add_axes(place))
    return figure


def save(figure: "Figure", file: Path) -> None:
    """Write a picture in the format that the name of the file ends in, one of `FORMATS`.

    Raises:
        StorageError: the system does not let it be written.
    """
    suffix = file.suffix.lower()
    with atomic_write(file) as temporary, _look():
        figure.savefig(temporary, format=suffix.removeprefix("."), metadata=FORMATS[suffix])
        if suffix == ".svg":
            picture = temporary.read_text(encoding="utf-8")
            picture = picture.replace("</style>", f"{SVG_TEXT}</style>", 1)
            temporary.write_text(picture, encoding="utf-8")


def missing_glyphs(sentence: Sentence, file: Path) -> Problem | None:
    """Return what to say of the characters that stand as boxes in a .png.

    Other formats hold text as text, which the viewer draws with fonts of its own.
    """
    missing = chosen_fonts(labels(sentence)).missing
    if file.suffix.lower() != ".png" or not missing:
        return None
    return Problem(
        str(file),
        "has boxes for characters that no installed font has",
        missing[:MAX_NAMED],
        "install a font that has them, or write .svg or .html",
    )


@contextlib.contextmanager
def _look() -> Iterator[None]:
    """Let matplotlib's defaults and `LOOK` hold for a while, whatever the user's settings are.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib import style
    except ModuleNotFoundError as error:
        raise UsageError(
            "tformer heatmap",
            "needs matplotlib, which is not installed",
            remedy="write .html, or install it with: pip install 'tformer[plot]'",
        ) from error
    with style.context(LOOK, after_reset=True), warnings.catch_warnings():
        # `missing_glyphs` says it once for all of them, and what to do.
        warnings.filterwarnings("ignore", r"Glyph \d+", UserWarning)
        yield
