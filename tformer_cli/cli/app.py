"""The `tformer` command and its sub-commands."""

import os
import sys
from typing import Annotated

import typer

from tformer_cli.cli import config as config_command
from tformer_cli.cli.average import average
from tformer_cli.cli.eval import evaluate
from tformer_cli.cli.plot import plot
from tformer_cli.cli.train import train
from tformer_cli.cli.translate import translate
from tformer_cli.cli.vocab import vocab
from tformer_cli.errors import StorageError, TformerError
from tformer_cli.version import __version__

app = typer.Typer(
    name="tformer",
    help="Train and run Transformer translation models from a YAML file.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
app.command("train")(train)
app.command("translate")(translate)
app.command("eval")(evaluate)
app.command("vocab")(vocab)
app.command("average")(average)
app.command("plot")(plot)
app.add_typer(config_command.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tformer {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Train and run Transformer translation models from a YAML file.

    Example: tformer train configs/demo.yaml && tformer eval --bleu
    """


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and an exit code."""
    # torch's threads wait for each other in a loop. Where another program wants the processor too,
    # a long wait costs four fifths of the speed; this one ends after some microseconds. GNU's
    # OpenMP reads it when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    # Batches of many shapes leave gaps in a GPU's memory that no other batch fits into.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
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
