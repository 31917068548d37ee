#!/usr/bin/env python
"""Choose an optimiser, a learning rate and a warm-up by the validation text, at a stated budget."""

import itertools
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from choices import chosen
from courses.contestants import CONTESTANTS, Contestant, contestant_of
from courses.worker import train_apart
from peers.marian import INIT_STD
from peers.marian_training import OPTIMIZERS, with_optimizer

from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.options import SetOption
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import checked
from tformer_cli.errors import Interrupted, TrainingError, UsageError
from tformer_cli.storage.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training of a sweep.

    Attributes:
        contestant: who learnt.
        optimizer: its kind.
        learning_rate: the peak.
        warmup_steps: of linear rise to the peak.
        steps: the budget.
        valid_score: the best on the validation text, BLEU or negative loss, as
            `training.selection_metric` says; None where the training failed.
        at_step: when that was.
    """

    contestant: str
    optimizer: str
    learning_rate: float
    warmup_steps: int
    steps: int
    valid_score: float | None
    at_step: int | None


def trainings(
    config: Config,
    folder: Path,
    name: str,
    optimizers: Sequence[str],
    rates: Sequence[float],
    warmups: Sequence[int],
    *,
    steps: int,
    init_std: float,
) -> list[Contestant]:
    """Return the trainings of a sweep, one for each way to choose.

    Args:
        config: of all of them.
        folder: theirs are NAME-OPTIMIZER-RATE-WARMUP in it.
        name: a key of CONTESTANTS.
        optimizers: keys of OPTIMIZERS.
        rates: peaks of the learning rate.
        warmups: steps of warm-up.
        steps: of each training, with a schedule of that length and a validation at its end.
        init_std: standard deviation of Marian's first weights.

    Raises:
        ConfigError: a rate or a warm-up breaks the limits of its key.
    """
    training = config.training
    short = replace(
        config,
        # Marian has as many positions as the longest text needs, and would read these for it.
        data=replace(config.data, test={}),
        training=replace(
            training,
            max_steps=steps,
            validate_every=min(steps, training.validate_every),
            save_every=min(steps, training.save_every),
        ),
    )
    found = []
    for kind, rate, warmup in itertools.product(optimizers, rates, warmups):
        tried = checked(with_optimizer(short, kind, rate, warmup), "")
        # A point in the name of a folder would begin a suffix.
        peak = f"{rate:g}".replace(".", "_")
        run = RunDirectory(folder / f"{name}-{kind}-{peak}-{warmup}")
        found.append(contestant_of(name, tried, run, init_std))
    return found


def outcome(contestant: Contestant) -> Outcome:
    """Return what a training has come to on the validation text; no test set is read."""
    training, state = contestant.config.training, contestant.state()
    return Outcome(
        contestant=contestant.name,
        optimizer=training.optimizer.kind,
        learning_rate=training.optimizer.learning_rate,
        warmup_steps=training.schedule.warmup_steps,
        steps=training.max_steps,
        valid_score=None if state is None else state.best_score,
        at_step=None if state is None else state.best_step,
    )


def best_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return outcomes with the best validation score first, those that failed last."""
    return sorted(
        outcomes, key=lambda one: -float("inf") if one.valid_score is None else one.valid_score
    )[::-1]


def table(outcomes: Sequence[Outcome]) -> str:
    """Return outcomes as lines to read, the one to choose first."""
    lines = [f"{'optimizer':<12}{'rate':>10}{'warm-up':>10}{'valid':>10}{'at step':>10}"]
    for found in outcomes:
        score = "failed" if found.valid_score is None else f"{found.valid_score:.2f}"
        step = "-" if found.at_step is None else f"{found.at_step:,}"
        lines.append(
            f"{found.optimizer:<12}{found.learning_rate:>10g}{found.warmup_steps:>10,}"
            f"{score:>10}{step:>10}"
        )
    return "\n".join(lines)


app = new_app(add_completion=False)


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as configs/enja50k.yaml.")],
    folder: Annotated[Path, typer.Option(metavar="DIR", help="What the trainings are kept in.")],
    name: Annotated[
        str, typer.Option("--contestant", help="ours: tformer; hf: transformers' Marian.")
    ] = "ours",
    optimizers: Annotated[
        str | None, typer.Option(help="adam, adamw, muon.", show_default="the config's")
    ] = None,
    rates: Annotated[str, typer.Option(help="Peaks of the learning rate.")] = "1e-3,2e-3,3e-3,5e-3",
    warmups: Annotated[
        str | None, typer.Option(help="Steps of warm-up.", show_default="the config's")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="The budget of each training.", show_default="the config's"),
    ] = None,
    settings: SetOption = None,
    init_std: Annotated[
        float, typer.Option(min=0.0, help="Standard deviation of Marian's first weights.")
    ] = INIT_STD,
    threads: Annotated[int, typer.Option(min=1, help="Of each.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Choose an optimiser, a learning rate and a warm-up by the validation text.

    Each combination is a training of --steps steps with a schedule of that length, one after
    another, in a process of its own and with the same environment and allocator. What counts is the
    best score on the validation text (training.selection_metric); no test set is read. The same
    command goes on where it was stopped.

    Example: python scripts/bench/sweep.py configs/enja50k.yaml --folder runs/sweep-enja50k
    --optimizers adamw,muon --rates 1e-3,3e-3,6e-3
    """
    parsed = load_config(config, settings or [])
    check_data_files(parsed.data)
    chosen("--contestant", name, CONTESTANTS, "contestant")
    torch.set_num_threads(threads)
    training = parsed.training
    known = optimizers or training.optimizer.kind
    planned = trainings(
        parsed,
        folder,
        name,
        chosen("--optimizers", known, OPTIMIZERS, "optimizer"),
        _numbers("--rates", rates, float),
        _numbers("--warmups", warmups or str(training.schedule.warmup_steps), int),
        steps=steps or training.max_steps,
        init_std=init_std,
    )
    for contestant in planned:
        contestant.check()
    try:
        for contestant in planned:
            _train(contestant, threads)
    except KeyboardInterrupt:
        raise Interrupted(
            str(folder),
            "interrupted",
            signal=signal.SIGINT,
            remedy="re-run the command to resume",
        ) from None
    outcomes = best_first([outcome(contestant) for contestant in planned])
    if as_json:
        typer.echo(json.dumps([asdict(found) for found in outcomes], indent=2))
    else:
        typer.echo(table(outcomes))


def _train(contestant: Contestant, threads: int) -> None:
    """Train to the end of the budget; a rate that diverges is an outcome too."""
    if contestant.is_over(float("inf")):
        return
    try:
        train_apart(contestant, seconds=float("inf"), threads=threads)
    except TrainingError as error:
        print(error, file=sys.stderr, flush=True)


def _numbers(option: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        return list(dict.fromkeys(map(kind, text.split(","))))
    except ValueError:
        raise UsageError(option, "must be numbers with commas between", got=text) from None


if __name__ == "__main__":
    run(app)
