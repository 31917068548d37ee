"""The `tformer` command and its subcommands."""

import logging
import os
from collections.abc import Callable
from typing import Annotated

import typer

from tformer_cli import __version__
from tformer_cli.cli import (
    clean,
    compare,
    config,
    demo,
    doctor,
    eval,
    export,
    model,
    phrases,
    plot,
    serve,
    synthesize,
    train,
    translate,
    tune,
)
from tformer_cli.cli.entry import new_app, run
from tformer_cli.errors import StorageError
from tformer_cli.process import tune_environment

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "init": config.init,
    "doctor": doctor.doctor,
    "train": train.train,
    "translate": translate.translate,
    "serve": serve.serve,
    "distill": synthesize.distill,
    "back-translate": synthesize.back_translate,
    "extract-phrases": phrases.extract_phrases,
    "eval": eval.evaluate,
    "tune": tune.tune,
    "calibrate": tune.calibrate,
    "score": eval.score,
    "compare": compare.compare,
    "clean": clean.clean,
    "vocab": train.vocab,
    "model": model.model,
    "average": train.average,
    "plot": plot.plot,
    "heatmap": plot.heatmap,
    "report": plot.report,
    "import": export.import_,
    "trim": export.trim,
    "extend": export.extend,
    "export": export.export,
}

app = new_app(name="tformer", no_args_is_help=True)
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(config.config_app, name="config")


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

    Example: tformer demo

    Example: tformer config new corpus.en corpus.de --output my.yaml && tformer train my.yaml
    """
    app.shows_tracebacks = debug
    # Without a current folder, torch ends the process silently.
    try:
        os.getcwd()
    except FileNotFoundError:
        where = "the current folder"
        remedy = "change to one that is there"
        raise StorageError(where, "has been removed", remedy=remedy) from None


def main() -> None:
    """Run `tformer`."""
    tune_environment()
    # It warns if it cannot cache its list of fonts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    run(app)
