"""Options that several commands share, and what they mean for a config."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.config.load import changed_decoding
from tformer_cli.config.schema import (
    BeamConfig,
    Config,
    DecodingConfig,
    GreedyConfig,
    SearchConfig,
)
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
SearchSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="decoding.KEY=VALUE",
        help="Change the run's search; may be repeated: decoding.no_repeat_ngram=3, or "
        "'decoding={kind: sample, top_k: 10}'.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
PrecisionOption = Annotated[
    str, typer.Option(help="Number format of matrix products: auto, float32, bfloat16 or float16.")
]
CheckpointOption = Annotated[str, typer.Option(help="best, last, or a name such as step-000400.")]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Processes that share the work on a CPU, a thread each. Default: one a core."
    ),
]
BeamOption = Annotated[
    int | None, typer.Option(min=1, help="Beam size; 1 is greedy search. Default: the run's.")
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(min=0.0, help="Score is log probability / length ** A. Default: the run's."),
]

NAMES = {"greedy": "greedy search", "beam": "beam search", "sample": "sampling"}


def chosen_run(run: Path | None) -> RunDirectory:
    """Return the run folder named on the command line, or the newest one.

    Raises:
        CheckpointError: none is named and there is none.
    """
    return newest_run() if run is None else RunDirectory(run)


def chosen_decoding(
    config: Config,
    beam: int | None,
    length_penalty: float | None,
    settings: Sequence[str] | None = None,
) -> DecodingConfig:
    """Return the search of a run with what the command line changes.

    Args:
        config: of the run.
        beam: beam size; 1 is greedy search.
        length_penalty: of beam search.
        settings: `decoding.KEY=VALUE`.

    Raises:
        ConfigError: a setting is wrong.
        UsageError: a length penalty was asked of a search that has no use for it.
    """
    decoding = changed_decoding(config, settings or [])
    rules = {part.name: getattr(decoding, part.name) for part in fields(SearchConfig)}
    if beam == 1:
        decoding = GreedyConfig(**rules)
    elif beam is not None and isinstance(decoding, BeamConfig):
        decoding = replace(decoding, size=beam)
    elif beam is not None:
        decoding = BeamConfig(size=beam, **rules)
    if length_penalty is None:
        return decoding
    if not isinstance(decoding, BeamConfig):
        raise UsageError(
            "--length-penalty",
            f"has no effect on {NAMES[decoding.kind]}",
            got=f"{length_penalty:g}",
            remedy="add --beam 5",
        )
    return replace(decoding, length_penalty=length_penalty)
