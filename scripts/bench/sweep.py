#!/usr/bin/env python
"""Choose settings on validation texts, at a fixed budget."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import torch
import typer
from cli import AsJson, Folder, Threads, numbers_in, show
from harness import aligned, log, mean_and_deviation
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


def training_of(file: Path, changes: Sequence[str], folder: Path, baseline: str) -> TrainingRun:
    """Return the training of a config file with some settings, in a folder of its own."""
    config = load_config(file, changes)
    # No sweep reads a test set.
    config = replace(config, data=replace(config.data, test={}))
    check_data_files(config.data)
    key = hashlib.sha256("\n".join(map(str, (file.resolve(), baseline, *changes))).encode())
    directory = RunDirectory(folder / f"{file.stem}-{key.hexdigest()[:12]}")
    return RUNS[baseline](config, directory)


def settings_of(variant: str) -> list[str]:
    """Return the settings between the semicolons of a variant."""
    return [setting.strip() for setting in variant.split(";") if setting.strip()]


def title_of(variant: str) -> str:
    """Return a variant as a table shows it."""
    return variant or "(the config's own)"


def table(config: str, outcomes: Sequence[dict[str, Any]]) -> str:
    """Return a row for each variant, with its mean score and the minutes."""
    rows = [["variant", config, f"{config}, min"]]
    for variant in dict.fromkeys(each["variant"] for each in outcomes):
        own = [x for x in outcomes if x["variant"] == variant and x["valid_score"] is not None]
        scores = mean_and_deviation([each["valid_score"] for each in own]) if own else "failed"
        minutes = f"{fmean(each['minutes'] for each in own):.1f}" if own else "-"
        rows.append([title_of(variant), scores, minutes])
    return aligned(rows)


app = new_app(add_completion=False)


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as configs/enja50k.yaml.")],
    folder: Folder,
    variants: Variants = None,
    name: Annotated[
        Literal["ours", "hf", "m2m100"],
        typer.Option(
            "--baseline", help="ours: tformer; hf: transformers' Marian; m2m100: its M2M-100."
        ),
    ] = "ours",
    seeds: Annotated[str, typer.Option(help="Seeds of each.")] = "1",
    settings: SetOption = None,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Choose settings on the validation texts.

    The config is trained as it is and with the settings of each variant, one training after
    another, in processes of their own and with the same environment and allocator. The best score
    on the validation text counts (training.selection_metric); no test set is read. --set changes
    all of them. Re-running the command resumes.

    Example: python scripts/bench/sweep.py configs/enja50k.yaml --folder runs/sweep
    --variant "training.optimizer.learning_rate=1e-3"
    --variant "training.optimizer={kind: muon, learning_rate: 6e-3}; model.dropout=0.3"
    """
    torch.set_num_threads(threads)
    trainings = {
        (variant, seed): training_of(
            config, [*(settings or []), *settings_of(variant), f"seed={seed}"], folder, name
        )
        for variant in dict.fromkeys([UNCHANGED, *(variants or [])])
        for seed in numbers_in("--seeds", seeds)
    }
    for training in trainings.values():
        training.check()
    outcomes = []
    for (variant, seed), training in trainings.items():
        try:
            train_in_process(training, threads=threads)
        except TrainingError as error:
            # A learning rate that diverges is an outcome too, but has no score: it had fewer steps.
            log(str(error))
        progress = training.progress() if training.is_over() else None
        outcomes.append(
            {
                "variant": variant,
                "seed": seed,
                # They are null where it failed.
                "valid_score": progress and progress.best_score,
                "at_step": progress and progress.best_step,
                "minutes": progress and progress.seconds / 60,
            }
        )
    show(outcomes, as_json, lambda: table(str(config), outcomes))


if __name__ == "__main__":
    run(app)
