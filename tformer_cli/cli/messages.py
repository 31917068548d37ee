"""What a command says on stderr while it works."""

import sys

import typer

from tformer_cli.errors import Problem


def warn(problem: Problem) -> None:
    """Print a line that stops nothing, above the bar if one is shown."""
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):
        typer.echo(str(problem), err=True)
