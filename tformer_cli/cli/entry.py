"""How a command line begins and how it ends."""

import io
import os
import sys
from typing import Any

import typer

from tformer_cli.errors import StorageError, TformerError, UsageError


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
    if sys.stderr is None:
        # The shell has closed it.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as we run
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files need not be UTF-8.
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        app()
    except (TformerError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        mistake = error if isinstance(error, TformerError) else refusal(error)
        typer.echo(str(mistake), err=True)
        sys.exit(mistake.exit_code)


def refuse_torchrun(command: str) -> None:
    """Make sure that one process alone does what it would not share with others.

    Args:
        command: that shares nothing.

    Raises:
        UsageError: torchrun has started several.
    """
    from tformer_cli.distributed import num_processes

    if num_processes() > 1:
        raise UsageError(
            f"tformer {command}",
            "is for one process",
            got=f"{num_processes()} processes",
            remedy="drop torchrun",
        )


def refusal(error: OSError) -> StorageError:
    """Return what the system refused, where nobody nearer to it has said so."""
    try:
        # There is none where the shell has closed it.
        if sys.stdout is not None:
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
