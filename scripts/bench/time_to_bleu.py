#!/usr/bin/env python
"""Measure the minutes of training to a BLEU, for tformer and for transformers' Marian."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import typer
from baseline_marian import INIT_STD
from cli import ROOT, AsJson, Folder, InitStd, Threads, names_in, numbers_in, resumable, show
from harness import aligned, log
from training_process import Clock, train_in_process
from training_runs import RUNS, Marian, TrainingRun, build_run, with_optimizer

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
from tformer_cli.training.validation import is_finished

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLDS = (30, 35, 38, 40)  # BLEU
MARKS = (60, 120)  # minutes of optimizer steps


@dataclass(frozen=True, slots=True)
class Point:
    """A checkpoint that was the best on the validation text so far."""

    minutes: float  # of optimizer steps until then
    wall_minutes: float  # of everything until then, validations and repeated steps included
    step: int
    valid_score: float  # BLEU or negative loss, which selected it
    test_bleu: float  # which selected nothing


@dataclass(frozen=True, slots=True)
class Curve:
    """One training."""

    baseline: str
    title: str  # in tables and pictures
    seed: int
    parameters: int
    optimizer: str
    learning_rate: float  # peak
    points: tuple[Point, ...]
    signature: str | None  # of the scores
    steps: int
    minutes: float  # of optimizer steps, within the time allowed
    wall_minutes: float  # of everything
    cpu_minutes: float  # of everything, all threads together
    is_finished: bool  # within the time allowed
    environment: dict[str, str]

    def minutes_to(self, bleu: float) -> float | None:
        """Return when the best checkpoint first had a score; None if it never had."""
        return next((point.minutes for point in self.points if point.test_bleu >= bleu), None)

    def bleu_at(self, minutes: float) -> float | None:
        """Return the score of the best checkpoint at a time; None if there was none.

        A finished training stays as it is.
        """
        if self.minutes < minutes and not self.is_finished:
            return None
        scores = [point.test_bleu for point in self.points if point.minutes <= minutes]
        return scores[-1] if scores else None

    def as_json(self) -> dict[str, Any]:
        """Return plain data, with the numbers of the table."""
        return asdict(self) | {
            "minutes_to": {str(bleu): self.minutes_to(bleu) for bleu in THRESHOLDS},
            "bleu_at": {str(minutes): self.bleu_at(minutes) for minutes in MARKS},
        }


def build_runs(
    config: Config,
    folder: Path,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    init_std: float = INIT_STD,
) -> Iterator[TrainingRun]:
    """Yield the trainings NAME-SEED of a folder, those of a seed together.

    The options are Marian's; None is the config's.
    """
    for seed in seeds:
        seeded = replace(config, seed=seed)
        for name in names:
            directory = RunDirectory(folder / f"{name}-{seed}")
            is_marian = issubclass(RUNS[name], Marian)
            tuned = with_optimizer(seeded, optimizer, learning_rate, warmup_steps)
            yield build_run(name, tuned if is_marian else seeded, directory, init_std)


def measure(
    trainings: Sequence[TrainingRun], test_set: str, *, minutes: float, threads: int
) -> list[Curve]:
    """Train what is not trained yet, and score it."""
    for training in trainings:
        training.check()
    curves = []
    for training in trainings:
        if not training.is_over(60 * minutes):
            train_in_process(training, seconds=60 * minutes, threads=threads)
        curves.append(curve_of(training, test_set, minutes))
    return curves


def curve_of(training: TrainingRun, test_set: str, minutes: float) -> Curve:
    """Score the best checkpoints of a training within some minutes."""
    clock, points, score = Clock(training.run), [], None
    for checkpoint, progress in training.best_checkpoints():
        if progress.seconds > 60 * minutes:
            break
        score = training.score(checkpoint, test_set)
        wall = clock.at(checkpoint) / 60
        point = Point(progress.seconds / 60, wall, progress.step, progress.score, score.score)
        points.append(point)
        log(
            f"{training.run.path.name}: step {point.step}, {point.minutes:.1f} minutes, "
            f"valid {point.valid_score:.2f}, {test_set} BLEU {point.test_bleu:.2f}"
        )
    progress, config = training.progress(), training.config.training
    return Curve(
        baseline=training.name,
        title=training.title,
        seed=training.config.seed,
        parameters=training.num_parameters(),
        optimizer=config.optimizer.kind,
        learning_rate=config.optimizer.learning_rate,
        points=tuple(points),
        signature=None if score is None else score.signature,
        steps=progress.step,
        minutes=min(progress.seconds / 60, minutes),
        wall_minutes=clock.seconds / 60,
        cpu_minutes=clock.cpu_seconds / 60,
        is_finished=progress.seconds <= 60 * minutes and is_finished(progress, config),
        environment=progress.environment,
    )


def table(curves: Sequence[Curve]) -> str:
    """Return a table with a row for each training."""
    head = [*(f">= {bleu}" for bleu in THRESHOLDS), *(f"at {minutes}" for minutes in MARKS)]
    rows = [["minutes to BLEU", "seed", *head, "steps", "minutes", "wall", "CPU"]]
    for curve in curves:
        cells = [(curve.minutes_to(bleu), ".1f") for bleu in THRESHOLDS]
        cells += [(curve.bleu_at(minutes), ".2f") for minutes in MARKS]
        cells += [(curve.steps, ","), (curve.minutes, ".1f")]
        cells += [(curve.wall_minutes, ".1f"), (curve.cpu_minutes, ".1f")]
        texts = ("-" if value is None else format(value, form) for value, form in cells)
        rows.append([curve.title, str(curve.seed), *texts])
    return aligned(rows)


@style(STYLE, "--output", "pip install 'tformer[plot]'")
def draw(curves: Sequence[Curve], test_set: str) -> "Figure":
    """Return the curves as steps: a color for each baseline, a dash pattern for each seed."""
    from matplotlib.figure import Figure

    baselines = list(dict.fromkeys(curve.baseline for curve in curves))
    seeds = list(dict.fromkeys(curve.seed for curve in curves))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        points = [(point.minutes, point.test_bleu) for point in curve.points]
        # The last score holds to the end of the training.
        ends = [(curve.minutes, points[-1][1])] if points else []
        axes.plot(
            [x for x, _ in points + ends],
            [y for _, y in points + ends],
            drawstyle="steps-post",
            marker="o",
            markersize=3.5,
            markevery=slice(len(points)),
            color=COLORS[baselines.index(curve.baseline) % len(COLORS)],
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
    minutes: Annotated[
        float, typer.Option(min=0.01, help="Maximum minutes of optimizer steps of a training.")
    ] = 120.0,
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
    optimizer: Annotated[
        Literal["adam", "adamw", "muon"] | None,
        typer.Option(help="Marian's.", show_default="the config's"),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(min=0.0, help="Marian's peak.", show_default="the config's")
    ] = None,
    warmup_steps: Annotated[
        int | None, typer.Option(min=0, help="Marian's.", show_default="the config's")
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
    missing in DIR, such as more seeds or more minutes.

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
            optimizer=optimizer,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            init_std=init_std,
        )
    )
    with resumable(folder):
        curves = measure(trainings, test_set, minutes=minutes, threads=threads)
    if output is not None:
        save_figure(draw(curves, test_set), output)
    signatures = [curve.signature for curve in curves if curve.signature is not None]
    environment = curves[-1].environment
    result = {
        "test_set": test_set,
        "decoding": asdict(parsed.decoding),
        "selection_metric": parsed.training.selection_metric,
        "max_steps": parsed.training.max_steps,
        "allowed_minutes": minutes,
        "init_std": init_std,
        "trainings": [curve.as_json() for curve in curves],
    }
    show(
        result,
        as_json,
        lambda: table(curves),
        f"BLEU on {test_set}, {signatures[0] if signatures else 'not scored yet'}",
        f"{environment['threads']} threads, torch {environment['torch']}, {environment['device']}",
    )


if __name__ == "__main__":
    run(app)
