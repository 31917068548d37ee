#!/usr/bin/env python
"""Measure the minutes of training until a BLEU, for tformer and for transformers' Marian."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from choices import chosen
from courses.contestants import CONTESTANTS, Contestant, Marian, contestant_of
from courses.figures import Course, Point, check_drawing, draw, table
from courses.worker import Clock, train_apart
from peers.marian import INIT_STD
from peers.marian_training import with_optimizer

from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.options import SetOption
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.errors import Interrupted, UsageError
from tformer_cli.plotting.curves import FORMATS, save
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.resume import is_finished

DEFAULT_CONFIG = Path(__file__).resolve().parents[2] / "configs" / "multi30k-tiny.yaml"


def contestants(
    config: Config,
    folder: Path,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    warmup_steps: int | None = None,
    init_std: float = INIT_STD,
) -> Iterator[Contestant]:
    """Yield the trainings of a folder, those of one seed together.

    Args:
        config: of all of them.
        folder: theirs is NAME-SEED in it.
        names: keys of CONTESTANTS.
        seeds: one training of each contestant a seed.
        optimizer: Marian's, a key of OPTIMIZERS; the config's where it is None.
        learning_rate: Marian's peak; the config's where it is None.
        warmup_steps: Marian's; the config's where it is None.
        init_std: standard deviation of Marian's first weights.
    """
    for seed in seeds:
        seeded = replace(config, seed=seed)
        for name in names:
            run = RunDirectory(folder / f"{name}-{seed}")
            if issubclass(CONTESTANTS[name], Marian):
                config_of = with_optimizer(seeded, optimizer, learning_rate, warmup_steps)
            else:
                config_of = seeded
            yield contestant_of(name, config_of, run, init_std)


def measure(
    trainings: Sequence[Contestant], test_set: str, *, minutes: float, threads: int
) -> list[Course]:
    """Train what is not trained yet, and score it.

    Args:
        trainings: of one config.
        test_set: its name in the config.
        minutes: of optimiser steps that each has.
        threads: of each.

    Raises:
        TformerError: a training cannot begin or failed.
    """
    for training in trainings:
        training.check()
    courses = []
    for training in trainings:
        if not training.is_over(60 * minutes):
            train_apart(training, seconds=60 * minutes, threads=threads)
        courses.append(course(training, test_set, minutes))
    return courses


def course(contestant: Contestant, test_set: str, minutes: float) -> Course:
    """Score a training as far as it has come within some minutes."""
    clock, points, score = Clock(contestant.run), [], None
    for checkpoint, state in contestant.chosen():
        if state.seconds > 60 * minutes:
            break
        score = contestant.score(checkpoint, test_set)
        point = Point(
            minutes=state.seconds / 60,
            wall_minutes=clock.at(checkpoint) / 60,
            step=state.step,
            valid_score=state.score,
            test_bleu=score.score,
        )
        points.append(point)
        print(
            f"{contestant.run.path.name}: step {point.step}, {point.minutes:.1f} minutes, "
            f"valid {point.valid_score:.2f}, {test_set} BLEU {point.test_bleu:.2f}",
            file=sys.stderr,
            flush=True,
        )
    state, training = contestant.state(), contestant.config.training
    is_in_time = state.seconds <= 60 * minutes
    return Course(
        contestant=contestant.name,
        title=contestant.title,
        seed=contestant.config.seed,
        parameters=contestant.num_parameters(),
        optimizer=training.optimizer.kind,
        learning_rate=training.optimizer.learning_rate,
        curve=tuple(points),
        signature=None if score is None else score.signature,
        steps=state.step,
        minutes=min(state.seconds / 60, minutes),
        wall_minutes=clock.seconds / 60,
        is_finished=is_in_time and is_finished(state, training),
        environment=state.environment,
    )


app = new_app(add_completion=False)


@app.command()
def quality(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="What the trainings are kept in.")],
    config: Annotated[
        Path, typer.Argument(help="A YAML file.", show_default="configs/multi30k-tiny.yaml")
    ] = DEFAULT_CONFIG,
    minutes: Annotated[
        float, typer.Option(min=0.01, help="Of optimiser steps, at most, a training.")
    ] = 120.0,
    seeds: Annotated[str, typer.Option(help="One training of each contestant a seed.")] = "1",
    names: Annotated[
        str,
        typer.Option(
            "--contestants",
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
    init_std: Annotated[
        float, typer.Option(min=0.0, help="Standard deviation of Marian's first weights.")
    ] = INIT_STD,
    threads: Annotated[int, typer.Option(min=1, help="Of each.")] = 2,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A picture: .png, .svg or .pdf.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the minutes of training until a BLEU, for tformer and for transformers' Marian.

    Marian gets the tokens, sizes, batches, optimiser, schedule, validations and steps of the
    config, in a good loop: batches of similar length, SDPA, fused AdamW. Its own are norms behind
    the blocks and its first weights. Those norms may want a gentler --learning-rate, which sweep.py
    finds by the validation text, and a narrow model an --init-std of about dim ** -0.5.

    Minutes are those of the optimiser steps; the schedule has the length that the config says,
    training.max_steps. Each checkpoint that was the best on the validation text in its time is
    scored on the first test set, and nothing is chosen by that score.

    Each training is a process of its own, all with the environment and the allocator of tformer's
    command line but hf_default. The same command goes on where it was stopped, and trains and
    scores only what is not in DIR yet: more seeds, or more minutes.

    Example: python scripts/bench/quality.py --folder runs/quality --seeds 1,2,3 -o quality.svg
    """
    parsed = load_config(config, settings or [])
    check_data_files(parsed.data)
    test_set = next(iter(parsed.data.test), None)
    if test_set is None:
        raise UsageError(str(config), "has no test set", remedy="name one under data.test")
    if output is not None:
        if output.suffix.lower() not in FORMATS:
            raise UsageError("--output", "must end in .png, .svg or .pdf", got=str(output))
        check_drawing()
    torch.set_num_threads(threads)
    trainings = list(
        contestants(
            parsed,
            folder,
            chosen("--contestants", names, CONTESTANTS, "contestant"),
            _seeds(seeds),
            optimizer=optimizer,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            init_std=init_std,
        )
    )
    try:
        courses = measure(trainings, test_set, minutes=minutes, threads=threads)
    except KeyboardInterrupt:
        raise Interrupted(
            str(folder),
            "interrupted",
            signal=signal.SIGINT,
            remedy="re-run the command to resume",
        ) from None
    if output is not None:
        save(draw(courses, test_set), output)
    if not as_json:
        typer.echo(table(courses))
        signatures = [found.signature for found in courses if found.signature is not None]
        typer.echo(f"BLEU on {test_set}, {signatures[0] if signatures else 'not scored yet'}")
        environment = courses[-1].environment
        typer.echo(
            f"{environment['threads']} threads, torch {environment['torch']}, "
            f"{environment['device']}"
        )
        return
    result = {
        "test_set": test_set,
        "decoding": asdict(parsed.decoding),
        "select": parsed.training.selection_metric,
        "max_steps": parsed.training.max_steps,
        "allowed_minutes": minutes,
        "init_std": init_std,
        "trainings": [found.as_json() for found in courses],
    }
    typer.echo(json.dumps(result, indent=2))


def _seeds(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise UsageError("--seeds", "must be whole numbers with commas between", got=text)
    return list(dict.fromkeys(map(int, words)))


if __name__ == "__main__":
    run(app)
