#!/usr/bin/env python
"""Choose settings on validation texts, at a fixed budget."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated

import torch
import typer
from baseline_marian import INIT_STD
from cli import AsJson, Folder, InitStd, Threads, names_in, numbers_in, resumable, show
from harness import aligned, log
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


@dataclass(frozen=True)
class Trial:
    """A training of a config with some settings and a seed.

    Attributes:
        config: the file.
        variant: the settings, as on the command line; `UNCHANGED` for those of the config.
        seed: of the training.
        training: which resumes.
    """

    config: Path
    variant: str
    seed: int
    training: TrainingRun

    def outcome(self) -> "Outcome":
        """Return the best validation score."""
        progress = self.training.progress()
        if progress is None:
            return Outcome(str(self.config), self.variant, self.seed, None, None, None)
        best = (progress.best_score, progress.best_step)
        return Outcome(str(self.config), self.variant, self.seed, *best, progress.seconds / 60)


@dataclass(frozen=True)
class Outcome:
    """What a trial came to; no test set is read.

    Attributes:
        config: the file.
        variant: the settings.
        seed: of the training.
        valid_score: BLEU or negative loss; None where the training failed.
        at_step: of the best checkpoint.
        minutes: of the optimizer steps.
    """

    config: str
    variant: str
    seed: int
    valid_score: float | None
    at_step: int | None
    minutes: float | None


def build_trial(
    file: Path,
    settings: Sequence[str],
    variant: str,
    seed: int,
    folder: Path,
    *,
    baseline: str,
    init_std: float,
) -> Trial:
    """Return the trial of a config file with the settings of all trials and those of a variant."""
    changes = [*settings, *settings_of(variant), f"seed={seed}"]
    config = load_config(file, changes)
    # Marian's positions depend on the test sets, which no sweep reads.
    config = replace(config, data=replace(config.data, test={}))
    check_data_files(config.data)
    key = hashlib.sha256("\n".join(map(str, (file.resolve(), baseline, *changes))).encode())
    directory = RunDirectory(folder / f"{file.stem}-{key.hexdigest()[:12]}")
    return Trial(file, variant, seed, RUNS[baseline](config, directory, init_std))


def settings_of(variant: str) -> list[str]:
    """Return the settings between the semicolons of a variant."""
    return [setting.strip() for setting in variant.split(";") if setting.strip()]


def title_of(variant: str) -> str:
    """Return a variant as a table shows it."""
    return variant or "(the config's own)"


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a row for each variant, and for each config the mean score and the minutes.

    With several seeds the standard deviation follows.
    """
    configs = dict.fromkeys(each.config for each in outcomes)
    variants = dict.fromkeys(each.variant for each in outcomes)
    rows = [["variant", *(name for config in configs for name in (Path(config).stem, "min"))]]
    for variant in variants:
        row = [title_of(variant)]
        for config in configs:
            cell = (config, variant)
            row += cells([each for each in outcomes if (each.config, each.variant) == cell])
        rows.append(row)
    return aligned(rows)


def cells(seeds: Sequence[Outcome]) -> list[str]:
    """Return the mean score, with the standard deviation of several seeds, and mean minutes."""
    scores = [each.valid_score for each in seeds if each.valid_score is not None]
    minutes = [each.minutes for each in seeds if each.minutes is not None]
    if not scores:
        return ["failed", "failed"]
    deviation = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
    return [f"{fmean(scores):.2f}{deviation}", f"{fmean(minutes):.1f}"]


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
    trials = [
        build_trial(config, settings or [], variant, seed, folder, baseline=name, init_std=init_std)
        for config in configs
        for variant in dict.fromkeys([UNCHANGED, *(variants or [])])
        for seed in numbers_in("--seeds", seeds)
    ]
    for trial in trials:
        trial.training.check()
    with resumable(folder):
        for trial in trials:
            try:
                if not trial.training.is_over():
                    train_in_process(trial.training, threads=threads)
            except TrainingError as error:
                # A learning rate that diverges is an outcome too.
                log(str(error))
    outcomes = [trial.outcome() for trial in trials]
    show([asdict(each) for each in outcomes], as_json, lambda: table(outcomes))


if __name__ == "__main__":
    run(app)
