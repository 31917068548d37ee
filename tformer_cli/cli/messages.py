"""What a command prints for a person to read."""

import shlex
import sys
from collections.abc import Iterable, Sequence

import typer

from tformer_cli.cli.options import message
from tformer_cli.errors import Problem, printable


def tell(text: str) -> None:
    """Print lines on stdout; control characters of file names are escaped."""
    # A surrogate stands for a byte that is not UTF-8, and is printed as that byte.
    typer.echo("".join(c if c == "\n" or "\udc80" <= c <= "\udcff" else printable(c) for c in text))


def warn(problem: Problem) -> None:
    """Print a warning on stderr, above a progress bar."""
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):
        typer.echo(message(problem), err=True)


def suggest(*words: object) -> None:
    """Print the command to run next on stderr, given without `tformer`."""
    typer.echo(f"next: {shlex.join(['tformer', *map(str, words)])}", err=True)


def table(rows: Iterable[Sequence[str]], align: str) -> str:
    """Return rows as text; `align` has < or > for each column, for flush left or right."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in cells
    )
