#!/usr/bin/env python
"""Choose optimizer, learning rate and warm-up on the validation text, at a fixed budget."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from baseline_marian import INIT_STD
from cli import AsJson, Folder, InitStd, Threads, names_in, numbers_in, resumable, show
from harness import aligned, log
from training_process import train_in_process
from training_runs import OPTIMIZERS, RUNS, TrainingRun, build_run, with_optimizer

from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.options import SetOption
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import checked
from tformer_cli.errors import TrainingError
from tformer_cli.storage.run_directory import RunDirectory


def outcome(run: TrainingRun) -> dict[str, Any]:
    """Return the settings and the best validation score of a training; no test set is read.

    The score is BLEU or negative loss, and None where the training failed.
    """
    training, progress = run.config.training, run.progress()
    return {
        "baseline": run.name,
        "optimizer": training.optimizer.kind,
        "learning_rate": training.optimizer.learning_rate,  # peak
        "warmup_steps": training.schedule.warmup_steps,
        "steps": training.max_steps,
        "valid_score": None if progress is None else progress.best_score,
        "at_step": None if progress is None else progress.best_step,
    }


def build_runs(
    config: Config,
    folder: Path,
    name: str,
    optimizers: Sequence[str],
    rates: Sequence[float],
    warmups: Sequence[int],
    *,
    steps: int,
    init_std: float,
) -> list[TrainingRun]:
    """Return the trainings NAME-OPTIMIZER-RATE-WARMUP of a folder, one for each combination.

    Each has a schedule of `steps`, and a validation at its end.
    """
    training = config.training
    short = replace(
        config,
        # Marian's positions depend on the test sets, which no sweep reads.
        data=replace(config.data, test={}),
        training=replace(
            training,
            max_steps=steps,
            validate_every=min(steps, training.validate_every),
            save_every=min(steps, training.save_every),
        ),
    )
    runs = []
    for kind, rate, warmup in itertools.product(optimizers, rates, warmups):
        # A dot in the name of a folder would begin a suffix.
        peak = f"{rate:g}".replace(".", "_")
        directory = RunDirectory(folder / f"{name}-{kind}-{peak}-{warmup}")
        tried = checked(with_optimizer(short, kind, rate, warmup), "")
        runs.append(build_run(name, tried, directory, init_std))
    return runs


def best_first(outcomes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return outcomes with the best validation score first, failed ones last."""

    def score(outcome: dict[str, Any]) -> float:
        return -math.inf if outcome["valid_score"] is None else outcome["valid_score"]

    return sorted(outcomes, key=score, reverse=True)


COLUMNS = {
    "optimizer": ("optimizer", ""),
    "rate": ("learning_rate", "g"),
    "warm-up": ("warmup_steps", ","),
    "valid": ("valid_score", ".2f"),
    "at step": ("at_step", ","),
}


def table(outcomes: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row for each training."""
    rows = [list(COLUMNS)]
    for row in outcomes:
        cells = ((row[key], form) for key, form in COLUMNS.values())
        rows.append(["failed" if value is None else format(value, form) for value, form in cells])
    return aligned(rows)


app = new_app(add_completion=False)


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as configs/enja50k.yaml.")],
    folder: Folder,
    name: Annotated[
        str, typer.Option("--baseline", help="ours: tformer; hf: transformers' Marian.")
    ] = "ours",
    optimizers: Annotated[
        str | None, typer.Option(help="adam, adamw, muon.", show_default="the config's")
    ] = None,
    rates: Annotated[str, typer.Option(help="Peak learning rates.")] = "1e-3,2e-3,3e-3,5e-3",
    warmups: Annotated[
        str | None, typer.Option(help="Warm-up steps.", show_default="the config's")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of each training.", show_default="the config's"),
    ] = None,
    settings: SetOption = None,
    init_std: InitStd = INIT_STD,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Choose optimizer, learning rate and warm-up on the validation text.

    Each combination is a training of --steps steps with a schedule of that length, one after
    another, in a process of its own and with the same environment and allocator. The best score on
    the validation text counts (training.selection_metric); no test set is read. Re-running the
    command resumes.

    Example: python scripts/bench/sweep.py configs/enja50k.yaml --folder runs/sweep-enja50k
    --optimizers adamw,muon --rates 1e-3,3e-3,6e-3
    """
    parsed = load_config(config, settings or [])
    check_data_files(parsed.data)
    names_in("--baseline", name, RUNS, "baseline")
    torch.set_num_threads(threads)
    training = parsed.training
    kinds = optimizers or training.optimizer.kind
    runs = build_runs(
        parsed,
        folder,
        name,
        names_in("--optimizers", kinds, OPTIMIZERS, "optimizer"),
        numbers_in("--rates", rates, float),
        numbers_in("--warmups", warmups or str(training.schedule.warmup_steps)),
        steps=steps or training.max_steps,
        init_std=init_std,
    )
    for each in runs:
        each.check()
    with resumable(folder):
        for each in runs:
            try:
                if not each.is_over():
                    train_in_process(each, threads=threads)
            except TrainingError as error:
                # A learning rate that diverges is an outcome too.
                log(str(error))
    outcomes = best_first([outcome(each) for each in runs])
    show(outcomes, as_json, lambda: table(outcomes))


if __name__ == "__main__":
    run(app)
