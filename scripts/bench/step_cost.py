#!/usr/bin/env python
"""Measure what settings cost in a training step, as ratios taken in turns."""

import contextlib
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from cli import AsJson, Rounds, Threads, rounds_on, show
from harness import aligned, median_and_range, play_rounds, ratios
from sweep import UNCHANGED, Variants, settings_of, title_of
from train_baselines import prepared, training_workers

from tformer_cli.cli.entry import new_app, run
from tformer_cli.cli.options import SetOption
from tformer_cli.config.load import check_data_files, load_config


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
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of a turn.")] = 5.0,
    rounds: Rounds = 5,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Measure what the settings of each variant cost in a training step.

    The config as it is and each variant, processes of their own, take turns, in every second round
    backwards. A time is that of a target token as a multiple of the unchanged config's; it is the
    median over the rounds, with its range. Each sentence counts once. Nothing is saved.

    Example: python scripts/bench/step_cost.py configs/multi30k-tiny.yaml
    --set training.consistency=null --variant "training.consistency={kind: simcut}"
    """
    chosen = list(dict.fromkeys([UNCHANGED, *(variants or [])]))
    configs = [load_config(config, [*(settings or []), *settings_of(each)]) for each in chosen]
    check_data_files(configs[0].data)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        entries = {
            variant: ("ours", prepared(changed, folder / str(number)))
            for number, (variant, changed) in enumerate(zip(chosen, configs, strict=True))
        }
        workers = stack.enter_context(training_workers(entries, threads))

        def turn(variant: str) -> float:
            return workers[variant].ask(seconds=seconds)["tokens_per_second"]

        speeds = play_rounds(workers, rounds, turn, "target tokens/s")
    result = {title_of(variant): own for variant, own in speeds.items()}
    show(result, as_json, lambda: table(speeds), rounds_on(rounds, threads))


if __name__ == "__main__":
    run(app)
