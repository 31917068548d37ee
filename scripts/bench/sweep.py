#!/usr/bin/env python
"""Choose optimizer, learning rate and warm-up on the validation text, at a fixed budget."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training of a sweep."""

    baseline: str
    optimizer: str
    learning_rate: float  # peak
    warmup_steps: int
    steps: int
    valid_score: float | None  # best BLEU or negative loss; None where the training failed
    at_step: int | None

    @classmethod
    def of(cls, run: TrainingRun) -> "Outcome":
        """Return the best validation score of a training; no test set is read."""
        training, progress = run.config.training, run.progress()
        return cls(
            baseline=run.name,
            optimizer=training.optimizer.kind,
            learning_rate=training.optimizer.learning_rate,
            warmup_steps=training.schedule.warmup_steps,
            steps=training.max_steps,
            valid_score=None if progress is None else progress.best_score,
            at_step=None if progress is None else progress.best_step,
        )


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

    Raises:
        ConfigError: a rate or a warm-up breaks the limits of its key.
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


def best_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return outcomes with the best validation score first, failed ones last."""
    lowest = -float("inf")
    return sorted(
        outcomes, key=lambda x: lowest if x.valid_score is None else x.valid_score, reverse=True
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table with a row for each training."""
    rows = [["optimizer", "rate", "warm-up", "valid", "at step"]]
    for outcome in outcomes:
        score = "failed" if outcome.valid_score is None else f"{outcome.valid_score:.2f}"
        step = "-" if outcome.at_step is None else f"{outcome.at_step:,}"
        rate, warmup = f"{outcome.learning_rate:g}", f"{outcome.warmup_steps:,}"
        rows.append([outcome.optimizer, rate, warmup, score, step])
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
    outcomes = best_first([Outcome.of(each) for each in runs])
    show([asdict(outcome) for outcome in outcomes], as_json, lambda: table(outcomes))


if __name__ == "__main__":
    run(app)
