#!/usr/bin/env python
"""Measure the minutes of training to a BLEU, for tformer and for networks of transformers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from cli import AsJson, Folder, Threads, hardware, names_in, numbers_in, show
from harness import ROOT, aligned, log
from training_runs import RUNS, Ours, TrainingRun, train_in_process

from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.options import SetOption
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.errors import UsageError
from tformer_cli.storage.run_directory import RunDirectory

THRESHOLDS = (30, 35, 38, 40, 41)  # BLEU


def build_runs(
    config: Config,
    folder: Path,
    names: Sequence[str],
    seeds: Sequence[int],
    learning_rate: float | None = None,
) -> Iterator[TrainingRun]:
    """Yield the trainings NAME-SEED of a folder, those of a seed together.

    `learning_rate` is that of transformers; None is the config's.
    """
    # Every best checkpoint is kept; no training has more validations than steps.
    training = replace(config.training, keep_best=config.training.max_steps)
    rate = training.optimizer.learning_rate if learning_rate is None else learning_rate
    theirs = replace(training, optimizer=replace(training.optimizer, learning_rate=rate))
    for seed in seeds:
        for name in names:
            own = replace(config, seed=seed, training=training if name == Ours.name else theirs)
            yield RUNS[name](own, RunDirectory(folder / f"{name}-{seed}"))


def curve_of(training: TrainingRun, test_set: str, *, tune: bool = False) -> dict[str, Any]:
    """Score the best checkpoints of a finished training on a test set.

    Minutes are those of optimizer steps, processor minutes those of everything and of all threads.
    With `tune` the last checkpoint is scored by the best search of the validation text too.
    """
    points = []
    for checkpoint, best in training.best_checkpoints():
        score = training.score(checkpoint, test_set)
        point = {"minutes": best.seconds / 60, "step": best.step}
        # The first score selected the checkpoint: BLEU or negative loss. The other selects nothing.
        points.append(point | {"valid_score": best.score, "test_bleu": score.score})
        log(f"{training.run.path.name}: {points[-1]}")
    tuned: dict[str, Any] = {}
    if tune:
        search = training.tuned_search(checkpoint)
        bleu = training.score(checkpoint, test_set, search).score
        tuned["tuned"] = {"decoding": asdict(search), "test_bleu": bleu}
        log(f"{training.run.path.name}: {tuned}")
    progress = training.progress()
    reached = {
        # Minutes until the best checkpoint first had a score.
        bleu: next((x["minutes"] for x in points if x["test_bleu"] >= bleu), None)
        for bleu in THRESHOLDS
    }
    return {
        "title": training.title,
        "seed": training.config.seed,
        "points": points,
        **tuned,
        "minutes_to": reached,
        "signature": score.signature,
        "steps": progress.step,
        "minutes": progress.seconds / 60,
        "cpu_minutes": training.cpu_seconds / 60,
    }


def measure(
    trainings: Sequence[TrainingRun], test_set: str, *, threads: int, tune: bool = False
) -> list[dict[str, Any]]:
    """Train what is not trained yet, and score it."""
    for training in trainings:
        training.check()
    curves = []
    for training in trainings:
        train_in_process(training, threads=threads)
        curves.append(curve_of(training, test_set, tune=tune))
    return curves


def table(curves: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row for each training."""
    head = [*(f">= {bleu}" for bleu in THRESHOLDS), "at the end", "minutes", "CPU"]
    if "tuned" in curves[0]:
        head.insert(-2, "tuned")
    rows = [["min to BLEU", "seed", *head]]
    for curve in curves:
        minutes = curve["minutes_to"].values()
        texts = ("-" if value is None else f"{value:.1f}" for value in minutes)
        bleu, end = curve["points"][-1]["test_bleu"], f"{curve['minutes']:.1f}"
        tuned = [f"{curve['tuned']['test_bleu']:.2f}"] if "tuned" in curve else []
        last = (f"{bleu:.2f}", *tuned, end, f"{curve['cpu_minutes']:.1f}")
        rows.append([curve["title"], str(curve["seed"]), *texts, *last])
    return aligned(rows)


app = new_app(add_completion=False)


@app.command()
def time_to_bleu(
    folder: Folder,
    config: Annotated[
        Path, typer.Argument(help="A YAML file.", show_default="configs/multi30k-tiny.yaml")
    ] = ROOT / "configs" / "multi30k-tiny.yaml",
    seeds: Annotated[str, typer.Option(help="One training of each baseline per seed.")] = "1",
    names: Annotated[
        str,
        typer.Option(
            "--baselines",
            help="ours: tformer; hf: transformers' Marian; m2m100: its M2M-100, with pre-norm.",
        ),
    ] = "ours,hf",
    settings: SetOption = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak of Marian and M2M-100.", show_default="the config's")
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Also score the end by each network's own search."),
    ] = False,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Measure the minutes of training to a BLEU, for tformer and for networks of transformers.

    Marian and M2M-100 get the tokens, sizes, batches, optimizer, schedule, validations and steps of
    the config, in a good loop: batches of similar length, SDPA, fused AdamW. Their initial weights
    have a standard deviation of dim ** -0.5. Marian is post-norm, and may want a lower
    --learning-rate, which sweep.py finds on the validation text.

    Minutes are those of the optimizer steps; the length of the schedule is training.max_steps. Each
    checkpoint that was the best on the validation text so far is scored on the first test set; that
    score selects nothing.

    All are translated by the search of the config, which may have been chosen for translations of
    tformer. With --tune the last checkpoint of each is scored by a second search too: the one that
    `tformer tune` finds for it on the validation text.

    Each training is a process of its own, with the environment and the allocator of tformer's
    command line. Re-running the command resumes; it trains and scores only what is missing in DIR,
    such as more seeds.

    Example: python scripts/bench/time_to_bleu.py --folder runs/quality --seeds 1,2,3
    --set training.bidirectional_steps=null --set training.consistency=null
    """
    parsed = load_config(config, settings or [])
    check_data_files(parsed.data)
    test_set = next(iter(parsed.data.test), None)
    if test_set is None:
        raise UsageError(str(config), "has no test set", remedy="name one under data.test")
    torch.set_num_threads(threads)
    chosen = names_in("--baselines", names, RUNS, "baseline")
    if learning_rate is not None and set(chosen) == {Ours.name}:
        what = "has no effect without a baseline of transformers"
        raise UsageError("--learning-rate", what, got=f"{learning_rate:g}", remedy="leave it out")
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        what = "must be a number above 0"
        raise UsageError("--learning-rate", what, got=f"{learning_rate:g}")
    trainings = list(
        build_runs(parsed, folder, chosen, numbers_in("--seeds", seeds), learning_rate)
    )
    curves = measure(trainings, test_set, threads=threads, tune=tune)
    result = {"test_set": test_set, "trainings": curves}
    note = f"BLEU on {test_set}, {curves[0]['signature']}"
    show(result, as_json, lambda: table(curves), note, hardware(threads))


if __name__ == "__main__":
    run(app)
