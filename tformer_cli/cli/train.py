"""`tformer train`."""

from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.cli.options import DeviceOption, SetOption
from tformer_cli.config.load import load_config
from tformer_cli.run_directory import run_of_config


def train(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as configs/demo.yaml.")],
    run: Annotated[
        Path | None,
        typer.Option(help="The run folder. Default: runs/NAME for NAME.yaml.", show_default=False),
    ] = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what the run folder holds and begin again.")
    ] = False,
) -> None:
    """Train a model, or go on with a run that was interrupted.

    The vocabulary is built when it is missing. The same command again goes on from the last
    checkpoint, exactly as if there had been no break.

    Example: tformer train configs/demo.yaml --set training.max_steps=500 --run runs/short
    """
    parsed = load_config(config, settings or [])

    # torch takes a second to import: only those who train wait for it.
    from tformer_cli.device import resolve_device
    from tformer_cli.training import run as training

    training.train(parsed, run_of_config(config, run), device=resolve_device(device), fresh=fresh)
