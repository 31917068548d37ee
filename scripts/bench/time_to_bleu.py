#!/usr/bin/env python
"""Measure the minutes of training to a BLEU, for tformer and for transformers' Marian."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from baseline_marian import INIT_STD
from cli import (
    ROOT,
    AsJson,
    Folder,
    InitStd,
    Threads,
    hardware,
    names_in,
    numbers_in,
    resumable,
    show,
)
from harness import aligned, log
from training_runs import RUNS, Marian, TrainingRun, train_in_process

from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.options import SetOption
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.errors import UsageError
from tformer_cli.plotting.curves import (
    COLORS,
    DASHES,
    FIGURE_FORMATS,
    GRAY,
    STYLE,
    save_figure,
    style,
)
from tformer_cli.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLDS = (30, 35, 38, 40)  # BLEU


@dataclass(frozen=True, slots=True)
class Point:
    """A checkpoint that was the best on the validation text so far."""

    minutes: float  # of optimizer steps until then
    step: int
    valid_score: float  # BLEU or negative loss, which selected it
    test_bleu: float  # which selected nothing


@dataclass(frozen=True, slots=True)
class Curve:
    """One training."""

    title: str  # in tables and pictures
    seed: int
    points: tuple[Point, ...]
    signature: str  # of the scores
    steps: int
    minutes: float  # of optimizer steps
    cpu_minutes: float  # of everything, all threads together

    @classmethod
    def of(cls, training: TrainingRun, test_set: str) -> "Curve":
        """Score the best checkpoints of a finished training."""
        points = []
        for checkpoint, best in training.best_checkpoints():
            score = training.score(checkpoint, test_set)
            points.append(Point(best.seconds / 60, best.step, best.score, score.score))
            log(f"{training.run.path.name}: {points[-1]}")
        progress = training.progress()
        return cls(
            training.title,
            training.config.seed,
            tuple(points),
            score.signature,
            progress.step,
            progress.seconds / 60,
            training.cpu_seconds / 60,
        )

    def minutes_to(self, bleu: float) -> float | None:
        """Return when the best checkpoint first had a score; None if it never had."""
        return next((point.minutes for point in self.points if point.test_bleu >= bleu), None)


def build_runs(
    config: Config,
    folder: Path,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    learning_rate: float | None = None,
    init_std: float = INIT_STD,
) -> Iterator[TrainingRun]:
    """Yield the trainings NAME-SEED of a folder, those of a seed together.

    `learning_rate` is Marian's; None is the config's.
    """
    optimizer = config.training.optimizer
    if learning_rate is not None:
        optimizer = replace(optimizer, learning_rate=learning_rate)
    marians = replace(config, training=replace(config.training, optimizer=optimizer))
    for seed in seeds:
        for name in names:
            own = replace(marians if issubclass(RUNS[name], Marian) else config, seed=seed)
            yield RUNS[name](own, RunDirectory(folder / f"{name}-{seed}"), init_std)


def measure(trainings: Sequence[TrainingRun], test_set: str, *, threads: int) -> list[Curve]:
    """Train what is not trained yet, and score it."""
    for training in trainings:
        training.check()
    curves = []
    for training in trainings:
        if not training.is_over():
            train_in_process(training, threads=threads)
        curves.append(Curve.of(training, test_set))
    return curves


def table(curves: Sequence[Curve]) -> str:
    """Return a table with a row for each training."""
    head = [*(f">= {bleu}" for bleu in THRESHOLDS), "at the end", "minutes", "CPU"]
    rows = [["minutes to BLEU", "seed", *head]]
    for curve in curves:
        minutes = map(curve.minutes_to, THRESHOLDS)
        texts = ("-" if value is None else f"{value:.1f}" for value in minutes)
        ends = (f"{curve.points[-1].test_bleu:.2f}", f"{curve.minutes:.1f}")
        rows.append([curve.title, str(curve.seed), *texts, *ends, f"{curve.cpu_minutes:.1f}"])
    return aligned(rows)


@style(STYLE, "--output", "pip install 'tformer[plot]'")
def draw(curves: Sequence[Curve], test_set: str) -> "Figure":
    """Return the curves as steps: a color for each baseline, a dash pattern for each seed."""
    from matplotlib.figure import Figure

    titles = list(dict.fromkeys(curve.title for curve in curves))
    seeds = list(dict.fromkeys(curve.seed for curve in curves))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        points = [(point.minutes, point.test_bleu) for point in curve.points]
        # The last score holds to the end of the training.
        axes.plot(
            *zip(*points, (curve.minutes, points[-1][1]), strict=True),
            drawstyle="steps-post",
            marker="o",
            markersize=3.5,
            markevery=slice(len(points)),
            color=COLORS[titles.index(curve.title) % len(COLORS)],
            linestyle=DASHES[seeds.index(curve.seed) % len(DASHES)],
            label=f"{curve.title}, seed {curve.seed}",
            zorder=3,
        )
    for bleu in THRESHOLDS:
        axes.axhline(bleu, color=GRAY, linewidth=0.8, linestyle=(0, (1, 3)), zorder=2)
    axes.set_yticks(sorted({0, 10, 20, *THRESHOLDS}))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes of optimizer steps")
    axes.set_ylabel(f"BLEU on {test_set}")
    if curves:
        axes.legend(loc="lower right")
    return figure


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
            help="ours: tformer; hf: transformers' Marian with the environment and the allocator "
            "of ours; hf_default: without.",
        ),
    ] = "ours,hf",
    settings: SetOption = None,
    learning_rate: Annotated[
        float | None, typer.Option(min=0.0, help="Marian's peak.", show_default="the config's")
    ] = None,
    init_std: InitStd = INIT_STD,
    threads: Threads = 2,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A picture: .png, .svg or .pdf.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the minutes of training to a BLEU, for tformer and for transformers' Marian.

    Marian gets the tokens, sizes, batches, optimizer, schedule, validations and steps of the
    config, in a good loop: batches of similar length, SDPA, fused AdamW. It is post-norm and has
    its own initial weights. Post-norm may want a lower --learning-rate, which sweep.py finds on the
    validation text, and a narrow model an --init-std of about dim ** -0.5.

    Minutes are those of the optimizer steps; the length of the schedule is training.max_steps. Each
    checkpoint that was the best on the validation text so far is scored on the first test set; that
    score selects nothing.

    Each training is a process of its own, all but hf_default with the environment and the allocator
    of tformer's command line. Re-running the command resumes; it trains and scores only what is
    missing in DIR, such as more seeds.

    Example: python scripts/bench/time_to_bleu.py --folder runs/quality --seeds 1,2,3 -o quality.svg
    """
    parsed = load_config(config, settings or [])
    check_data_files(parsed.data)
    test_set = next(iter(parsed.data.test), None)
    if test_set is None:
        raise UsageError(str(config), "has no test set", remedy="name one under data.test")
    if output is not None:
        if output.suffix.lower() not in FIGURE_FORMATS:
            raise UsageError("--output", "must end in .png, .svg or .pdf", got=str(output))
        # Without matplotlib there is an error now, not after hours.
        draw([], test_set)
    torch.set_num_threads(threads)
    trainings = list(
        build_runs(
            parsed,
            folder,
            names_in("--baselines", names, RUNS, "baseline"),
            numbers_in("--seeds", seeds),
            learning_rate=learning_rate,
            init_std=init_std,
        )
    )
    with resumable(folder):
        curves = measure(trainings, test_set, threads=threads)
    if output is not None:
        save_figure(draw(curves, test_set), output)
    result = {
        "test_set": test_set,
        "trainings": [
            asdict(curve) | {"minutes_to": {str(x): curve.minutes_to(x) for x in THRESHOLDS}}
            for curve in curves
        ],
    }
    note = f"BLEU on {test_set}, {curves[0].signature}"
    show(result, as_json, lambda: table(curves), note, hardware(threads))


if __name__ == "__main__":
    run(app)
