"""`tformer average`."""

import json
from typing import Annotated, Literal

import typer

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.messages import suggest, tell
from tformer_cli.cli.options import DeviceOption, RunArgument, chosen_run
from tformer_cli.errors import UsageError

MAX_COUNT = 5


def average(
    run: RunArgument = None,
    last: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Average the newest N checkpoints. Default: {MAX_COUNT}, or all if fewer.",
            metavar="N",
        ),
    ] = None,
    best: Annotated[
        int | None, typer.Option(min=2, help="Average the best N checkpoints.", metavar="N")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Average checkpoints of a run, and use the average if it is better.

    It is scored on the validation text. When the run is finished and the average does better
    than its best checkpoint, `best` is the average from then on.

    Example: tformer average runs/multi30k --last 5
    """
    if last is not None and best is not None:
        raise UsageError("--best", "contradicts --last", remedy="leave one of them out")
    refuse_torchrun("average")
    which: Literal["last", "best"] = "last" if best is None else "best"
    run_directory = chosen_run(run, "last")
    # Fewer than two are refused, as by --last 2.
    count = best or last or max(2, min(MAX_COUNT, len(run_directory.step_checkpoints())))

    from tformer_cli.device import resolve_device
    from tformer_cli.training.checkpoints import average_checkpoints

    found = average_checkpoints(run_directory, which, count, device=resolve_device(device))
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "checkpoint": str(found.checkpoint),
                    "members": [member.name for member in found.members],
                    "score": found.score,
                    "best_score": found.best_score,
                    "is_best": found.is_best,
                }
            )
        )
        return
    tell(f"{found.checkpoint}: the mean of {', '.join(m.name for m in found.members)}")
    loss = f"loss {found.validation.likelihood.loss:.4f}"
    tell(f"valid: {', '.join([loss, *map(str, found.validation.scores)])}")
    if found.is_best:
        typer.echo("better than the best checkpoint before: best is the average now")
    elif found.run_has_ended:
        typer.echo("not better than the best checkpoint: best stays as it was")
    else:
        typer.echo(
            f"the run is not finished: best stays as it was; "
            f"use this one with --checkpoint {found.checkpoint.name}"
        )
    words = () if found.is_best else ("--checkpoint", found.checkpoint.name)
    suggest("eval", run_directory.path, *words)
