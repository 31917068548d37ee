"""What a terminal gets and a file or a pipe does not: colors, progress bars, lines of its width."""

import contextlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

# Parameters of the control function SGR (ECMA-48, section 8.3.117).
COLOR_CODES = {"red": 31, "green": 32, "yellow": 33}

DEFAULT_COLUMNS = 80


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream, which the shell may have closed, is a terminal."""
    return stream is not None and stream.isatty()


def colored(text: str, color: str, stream: TextIO) -> str:
    """Return a text in a color for a terminal, unless NO_COLOR (no-color.org) is set."""
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    if is_plain or not is_terminal(stream):
        return text
    return f"\x1b[{COLOR_CODES[color]}m{text}\x1b[0m"


def fitted(text: str, stream: TextIO) -> str:
    """Return a text whose lines are cut to the width of a terminal; for a file it is unchanged."""
    from tqdm.utils import disp_len, disp_trim

    if not is_terminal(stream):
        return text
    # In the last column some terminals wrap.
    width = num_columns(stream) - 1
    return "\n".join(
        line if disp_len(line) <= width else f"{disp_trim(line, width - 1)}…"
        for line in text.split("\n")
    )


def num_columns(stream: TextIO) -> int:
    """Return the width of a terminal, or 80 where it does not tell."""
    # A stream of another program's console may have no file.
    with contextlib.suppress(OSError):
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    return DEFAULT_COLUMNS


def progress_bar(unit: str, *, desc: str | None = None, is_shown: bool = True) -> "tqdm[NoReturn]":
    """Return a progress bar on stderr, which a terminal shows until it ends, if at all.

    Its total is unknown until the caller sets one.
    """
    from tqdm import tqdm

    return tqdm(
        desc=desc,
        unit=f" {unit}s",
        dynamic_ncols=True,
        leave=False,
        disable=not is_shown or not is_terminal(sys.stderr),
    )
