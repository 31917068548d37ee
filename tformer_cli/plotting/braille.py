"""Curves as text: braille patterns of 2 by 4 dots a character (Unicode, block U+2800)."""

from collections.abc import Sequence

import numpy as np

from tformer_cli.plotting.curves import Point

# What each dot of a character, by row and column, adds to the code of the empty pattern.
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
BLANK = 0x2800
# Columns left of a curve, for the ends of the y axis.
LABEL_WIDTH = 8


def draw_chart(title: str, points: Sequence[Point], width: int, height: int) -> list[str]:
    """Return a chart of `height` + 2 lines of `width` characters.

    Above the curve are its title and last value, below it the first and the last x.
    """
    if not points:
        return [line.ljust(width) for line in [title, *[""] * (height + 1)]]
    (first, _), (last, value) = points[0], points[-1]
    columns = max(width - LABEL_WIDTH, 1)
    ys = [y for _, y in points]
    labels = [f"{max(ys):.2f}", *[""] * (height - 2), f"{min(ys):.2f}"]
    axis = f"{first:,}{f'{last:,}':>{max(columns - len(f'{first:,}'), 0)}}"
    left = LABEL_WIDTH - 1
    return [
        f"{title} {value:.2f}".ljust(width),
        *(
            f"{label:>{left}} {curve}"
            for label, curve in zip(labels, draw_curve(points, columns, height), strict=True)
        ),
        f"{'':{left}} {axis}",
    ]


def draw_curve(points: Sequence[Point], width: int, height: int) -> list[str]:
    """Return a line through points, in order of x, as `height` rows of `width` characters."""
    xs, ys = np.array(points, dtype=np.float64).T
    heights = np.interp(np.linspace(xs[0], xs[-1], 2 * width), xs, ys)
    scale = (4 * height - 1) / (np.ptp(ys) or 1)
    rows = np.rint((ys.max() - heights) * scale).astype(int)
    dots = np.zeros((4 * height, 2 * width), dtype=bool)
    for column, (row, before) in enumerate(zip(rows, [rows[0], *rows], strict=False)):
        ends = row, before + np.sign(row - before)
        dots[min(ends) : max(ends) + 1, column] = True
    codes = np.einsum("hrwc,rc->hw", dots.reshape(height, 4, width, 2), DOTS)
    return ["".join(chr(BLANK + code) for code in row) for row in codes]
