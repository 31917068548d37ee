"""What a command says on stderr while it works."""

import shlex
import sys

import typer

from tformer_cli.cli.options import message
from tformer_cli.errors import Problem, printable


def tell(text: str) -> None:
    """Print lines on stdout for a person to read; control characters of a name are escaped."""
    # What stands for a byte that is not UTF-8 becomes that byte.
    typer.echo("".join(c if c == "\n" or "\udc80" <= c <= "\udcff" else printable(c) for c in text))


def warn(problem: Problem) -> None:
    """Print a line that stops nothing, above the bar if one is shown."""
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):
        typer.echo(message(problem), err=True)


def suggest(*words: object) -> None:
    """Print the command to run next, without `tformer` in front."""
    typer.echo(f"next: {shlex.join(['tformer', *map(str, words)])}", err=True)
