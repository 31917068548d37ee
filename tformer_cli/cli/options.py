"""Options that several commands share, and what they mean for a config."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.config.schema import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.errors import UsageError
from tformer_cli.run_directory import RunDirectory, newest_run

RunArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A run folder, such as runs/demo; without it the newest under runs/.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the config; may be repeated."),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
PrecisionOption = Annotated[
    str, typer.Option(help="Number format of matrix products: auto, float32, bfloat16 or float16.")
]
CheckpointOption = Annotated[str, typer.Option(help="best, last, or a name such as step-000400.")]
BeamOption = Annotated[
    int | None, typer.Option(min=1, help="Beam size; 1 is greedy search. Default: the run's.")
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(min=0.0, help="Score is log probability / length ** A. Default: the run's."),
]


def chosen_run(run: Path | None) -> RunDirectory:
    """Return the run folder named on the command line, or the newest one.

    Raises:
        CheckpointError: none is named and there is none.
    """
    return newest_run() if run is None else RunDirectory(run)


def chosen_decoding(
    configured: DecodingConfig, beam: int | None, length_penalty: float | None
) -> DecodingConfig:
    """Return the search of a run with what the command line changes.

    Raises:
        UsageError: a length penalty was asked of greedy search, which has no use for it.
    """
    decoding = configured
    if beam == 1:
        decoding = GreedyConfig(max_length=configured.max_length)
    elif beam is not None and isinstance(configured, BeamConfig):
        decoding = replace(configured, size=beam)
    elif beam is not None:
        decoding = BeamConfig(size=beam, max_length=configured.max_length)
    if length_penalty is None:
        return decoding
    if isinstance(decoding, GreedyConfig):
        raise UsageError(
            "--length-penalty",
            "has no effect on greedy search",
            got=f"{length_penalty:g}",
            remedy="add --beam 5",
        )
    return replace(decoding, length_penalty=length_penalty)
