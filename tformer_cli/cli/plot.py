"""`tformer plot`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.cli.options import chosen_run
from tformer_cli.errors import UsageError
from tformer_cli.plotting import curves
from tformer_cli.plotting.curves import Axis
from tformer_cli.storage.run_directory import RunDirectory

DEFAULT_OUTPUT = Path("curves.png")


def plot(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Run folders, such as runs/demo; without one the newest under runs/.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"Picture: .png, .svg or .pdf. Default: {DEFAULT_OUTPUT}.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        Axis,
        typer.Option(help="Unit of x; hours count optimizer steps and waiting for batches."),
    ] = "step",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object of the points; draw only with --output."
        ),
    ] = False,
) -> None:
    """Draw the loss, validation BLEU, learning rate, gradient norm and throughput of runs.

    Training and validation losses are without label smoothing, so they are comparable.

    Example: tformer plot runs/demo

    Example: tformer plot runs/one runs/other --by hours --output curves.svg
    """
    if output is not None and output.suffix.lower() not in curves.FORMATS:
        raise UsageError("--output", "must end in .png, .svg or .pdf", got=str(output))
    folders = [RunDirectory(run) for run in runs] if runs else [chosen_run(None, "last")]
    picture = output if as_json else output or DEFAULT_OUTPUT
    histories = curves.plot(folders, by, picture)
    if as_json:
        content = [{"run": str(history.run), "curves": history.curves} for history in histories]
        typer.echo(json.dumps({"by": by, "runs": content}))
    else:
        typer.echo(f"{picture}: written")
