"""The `tformer` command and its subcommands."""

import logging
import os
from typing import Annotated

import typer

from tformer_cli import __version__
from tformer_cli.cli import config as config_command
from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.eval import evaluate
from tformer_cli.cli.export import export
from tformer_cli.cli.heatmap import heatmap
from tformer_cli.cli.import_ import import_
from tformer_cli.cli.model import model
from tformer_cli.cli.plot import plot
from tformer_cli.cli.score import score
from tformer_cli.cli.train import average, train
from tformer_cli.cli.translate import translate
from tformer_cli.cli.vocab import vocab
from tformer_cli.errors import StorageError
from tformer_cli.process import tune_environment

app = new_app(
    name="tformer",
    help="Train and run Transformer translation models from a YAML file.",
    no_args_is_help=True,
)
app.command("init")(config_command.init)
app.command("train")(train)
app.command("translate")(translate)
app.command("eval")(evaluate)
app.command("score")(score)
app.command("vocab")(vocab)
app.command("model")(model)
app.command("average")(average)
app.command("plot")(plot)
app.command("heatmap")(heatmap)
app.command("import")(import_)
app.command("export")(export)
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
    app.shows_tracebacks = debug
    # Without a current folder, torch ends the process silently.
    try:
        os.getcwd()
    except FileNotFoundError:
        raise StorageError(
            "the current folder", "has been removed", remedy="change to one that is there"
        ) from None


def main() -> None:
    """Run `tformer`."""
    tune_environment()
    # It warns if it cannot cache its list of fonts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    run(app)
