#!/usr/bin/env python
"""Measure what settings cost in a training step, as ratios taken in turns."""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from cli import CPU, AsJson, Rounds, Threads, rounds_on, show
from harness import aligned, median_and_range, play_rounds, ratios
from sweep import UNCHANGED, Variants, settings_of, title_of

from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.options import SetOption
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.reader import read_texts
from tformer_cli.process import tune_allocator
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import build_tokenizers
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.step import StepReport, train_steps
from tformer_cli.training.trainer import Trainer


@contextlib.contextmanager
def training_steps(config: Config, folder: Path) -> Iterator[Iterator[StepReport]]:
    """Build a vocabulary and a model; yield the steps of its training, of which none is saved."""
    tokenizers = build_tokenizers(
        config.tokenizer, lambda: read_texts(config.data.train), config.seed
    )
    logger = TrainingLogger(None, config.training)
    trainer = Trainer.setup(config, RunDirectory(folder), tokenizers, device=CPU, logger=logger)
    trainer.initialize()
    with contextlib.closing(trainer.data.batches(trainer.state)) as batches:
        yield train_steps(trainer.state, batches)


def tokens_per_second(steps: Iterator[StepReport], count: int) -> float:
    """Take some steps; return their target tokens a second, each sentence counted once."""
    start = time.perf_counter()
    num_tokens = sum(report.num_tokens for report in islice(steps, count))
    return num_tokens / (time.perf_counter() - start)


def table(speeds: dict[str, list[float]]) -> str:
    """Return the median speed of each variant, and its time as a multiple of the unchanged."""
    rows = [["settings", "target tokens/s", "time of a token"]]
    for variant, own in speeds.items():
        times = median_and_range(ratios(speeds[UNCHANGED], own))
        rows.append([title_of(variant), f"{median(own):,.0f}", times])
    return aligned(rows)


app = new_app(add_completion=False)


@app.command()
def step_cost(
    config: Annotated[Path, typer.Argument(help="A YAML file.")],
    variants: Variants = None,
    settings: SetOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a turn.")] = 20,
    rounds: Rounds = 5,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Measure what the settings of each variant cost in a training step.

    The config as it is and each variant take turns in one process, in every second round backwards.
    A time is that of a target token as a multiple of the unchanged config's; it is the median over
    the rounds, with its range. Nothing is saved.

    Example: python scripts/bench/step_cost.py configs/multi30k-tiny.yaml
    --variant "training.consistency={kind: simcut}"
    """
    torch.set_num_threads(threads)
    tune_allocator()
    chosen: Sequence[str] = list(dict.fromkeys([UNCHANGED, *(variants or [])]))
    configs = [load_config(config, [*(settings or []), *settings_of(each)]) for each in chosen]
    check_data_files(configs[0].data)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trainings = {
            variant: stack.enter_context(training_steps(changed, folder / str(index)))
            for index, (variant, changed) in enumerate(zip(chosen, configs, strict=True))
        }

        def turn(variant: str) -> float:
            return tokens_per_second(trainings[variant], steps)

        for variant in trainings:
            turn(variant)
        speeds = play_rounds(trainings, rounds, turn, "target tokens/s")
    result = {title_of(variant): own for variant, own in speeds.items()}
    show(result, as_json, lambda: table(speeds), rounds_on(rounds, threads))


if __name__ == "__main__":
    run(app)
