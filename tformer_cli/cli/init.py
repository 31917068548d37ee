"""`tformer init`."""

from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.config.shipped import write_shipped


def init(
    folder: Annotated[
        Path, typer.Argument(help="Where to write.", show_default="the current one")
    ] = Path(),
) -> None:
    """Copy the example configs and the demo text into a folder.

    They come with the package, and go to configs/ and data/demo/ in the folder. No file of yours is
    replaced.

    Example: tformer init && tformer train configs/demo.yaml
    """
    for name, count in write_shipped(folder).items():
        typer.echo(f"{folder / name}: {count} files")
    typer.echo(f"next: tformer train {folder / 'configs' / 'demo.yaml'}")
