"""How a command line begins and how it ends."""

import os
import sys
from typing import Any

import typer

from tformer_cli.errors import StorageError, TformerError


def new_app(**settings: Any) -> typer.Typer:
    """Return a command line with plain help and plain errors."""
    return typer.Typer(
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        **settings,
    )


def run(app: typer.Typer) -> None:
    """Run a command line; a user's mistake is one line on stderr and an exit code."""
    try:
        app()
    except (TformerError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        mistake = error if isinstance(error, TformerError) else refusal(error)
        typer.echo(str(mistake), err=True)
        sys.exit(mistake.exit_code)


def refusal(error: OSError) -> StorageError:
    """Return what the system refused, where nobody nearer to it has said so."""
    try:
        sys.stdout.flush()
    except OSError:
        # What is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return StorageError(
            "<stdout>", "cannot be written", got=error.strerror, remedy="what came out is not whole"
        )
    if error.filename is None:
        return StorageError.of(error, "tformer", "a file or stream cannot be read or written")
    return StorageError.of(error, str(error.filename), "cannot be read or written")
