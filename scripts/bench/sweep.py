#!/usr/bin/env python
"""Choose settings on validation texts, at a fixed budget."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer
from baseline_marian import INIT_STD
from cli import AsJson, Folder, InitStd, Threads, names_in, numbers_in, resumable, show
from harness import columns_table, log, mean_and_deviation
from training_runs import RUNS, TrainingRun, train_in_process

from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.options import SetOption
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.errors import TrainingError
from tformer_cli.storage.run_directory import RunDirectory

# The variant of a config as it is.
UNCHANGED = ""
Variants = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="KEY=VALUE;...",
        help="Settings to try, with semicolons between; repeatable.",
    ),
]


def training_of(
    file: Path, changes: Sequence[str], folder: Path, *, baseline: str, init_std: float
) -> TrainingRun:
    """Return the training of a config file with some settings, in a folder of its own."""
    config = load_config(file, changes)
    # Marian's positions depend on the test sets, which no sweep reads.
    config = replace(config, data=replace(config.data, test={}))
    check_data_files(config.data)
    key = hashlib.sha256("\n".join(map(str, (file.resolve(), baseline, *changes))).encode())
    directory = RunDirectory(folder / f"{file.stem}-{key.hexdigest()[:12]}")
    return RUNS[baseline](config, directory, init_std)


def outcome(training: TrainingRun) -> dict[str, float | None]:
    """Return the best validation score, its step, and minutes of steps; None if it failed."""
    progress = training.progress()
    return {
        "valid_score": progress and progress.best_score,
        "at_step": progress and progress.best_step,
        "minutes": progress and progress.seconds / 60,
    }


def settings_of(variant: str) -> list[str]:
    """Return the settings between the semicolons of a variant."""
    return [setting.strip() for setting in variant.split(";") if setting.strip()]


def title_of(variant: str) -> str:
    """Return a variant as a table shows it."""
    return variant or "(the config's own)"


def table(outcomes: Sequence[dict[str, Any]]) -> str:
    """Return a row for each variant, and for each config the mean score and the minutes."""
    columns: dict[str, dict[str, str]] = {}
    for config, variant in dict.fromkeys((each["config"], each["variant"]) for each in outcomes):
        cell = [x for x in outcomes if (x["config"], x["variant"]) == (config, variant)]
        scores = [each["valid_score"] for each in cell if each["valid_score"] is not None]
        minutes = [each["minutes"] for each in cell if each["minutes"] is not None]
        row = title_of(variant)
        columns.setdefault(config, {})[row] = mean_and_deviation(scores) if scores else "failed"
        columns.setdefault(f"{config}, min", {})[row] = f"{fmean(minutes):.1f}" if minutes else "-"
    return columns_table("variant", columns)


app = new_app(add_completion=False)


@app.command()
def sweep(
    configs: Annotated[
        list[Path], typer.Argument(help="YAML files, such as configs/enja50k.yaml.")
    ],
    folder: Folder,
    variants: Variants = None,
    name: Annotated[
        str, typer.Option("--baseline", help="ours: tformer; hf: transformers' Marian.")
    ] = "ours",
    seeds: Annotated[str, typer.Option(help="Seeds of each.")] = "1",
    settings: SetOption = None,
    init_std: InitStd = INIT_STD,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Choose settings on the validation texts.

    Each config is trained as it is and with the settings of each variant, one training after
    another, in processes of their own and with the same environment and allocator. The best score
    on the validation text counts (training.selection_metric); no test set is read. --set changes
    all of them. Re-running the command resumes.

    Example: python scripts/bench/sweep.py configs/enja50k.yaml --folder runs/sweep
    --variant "training.optimizer.learning_rate=1e-3"
    --variant "training.optimizer={kind: muon, learning_rate: 6e-3}; model.dropout=0.3"
    """
    names_in("--baseline", name, RUNS, "baseline")
    torch.set_num_threads(threads)
    trainings = {
        (str(config), variant, seed): training_of(
            config,
            [*(settings or []), *settings_of(variant), f"seed={seed}"],
            folder,
            baseline=name,
            init_std=init_std,
        )
        for config in configs
        for variant in dict.fromkeys([UNCHANGED, *(variants or [])])
        for seed in numbers_in("--seeds", seeds)
    }
    for training in trainings.values():
        training.check()
    with resumable(folder):
        for training in trainings.values():
            try:
                if not training.is_over():
                    train_in_process(training, threads=threads)
            except TrainingError as error:
                # A learning rate that diverges is an outcome too.
                log(str(error))
    outcomes = [
        {"config": config, "variant": variant, "seed": seed, **outcome(training)}
        for (config, variant, seed), training in trainings.items()
    ]
    show(outcomes, as_json, lambda: table(outcomes))


if __name__ == "__main__":
    run(app)
