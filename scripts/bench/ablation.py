#!/usr/bin/env python
"""Compare the members of the family of Transformers, one change at a time from a modern base."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from choices import chosen
from courses.contestants import Ours
from courses.worker import train_apart
from members.figures import Learnt, Row, table
from members.members import CHANGES, VOCAB_SIZE, member, num_parameters
from members.speed import Speed, cache_bytes, take_turn

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.config.schema.training import CosineSchedule, MuonConfig, TrainingConfig
from tformer_cli.device import hardware_name
from tformer_cli.errors import Interrupted
from tformer_cli.storage.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "multi30k.yaml"
BASE = "base"


def training(steps: int) -> TrainingConfig:
    """Return how every member learns."""
    return TrainingConfig(
        optimizer=MuonConfig(learning_rate=6e-3),
        schedule=CosineSchedule(warmup_steps=max(1, steps // 6)),
        batch_tokens=1024,
        max_steps=steps,
        validate_every=steps,
        validation_decoding=GreedyConfig(),
        save_every=min(steps, 100),
        selection_metric="loss",
    )


def trainings(
    text: Config, folder: Path, names: Sequence[str], seeds: Sequence[int], steps: int
) -> Iterator[tuple[str, Ours]]:
    """Yield the trainings, those of one seed together, with the names of their members.

    Args:
        text: a config, for its text and its scores.
        folder: theirs is NAME-SEED in it.
        names: of members.
        seeds: one training of each member a seed.
        steps: of each.
    """
    tokenizer = SubwordConfig(algorithm="bpe", vocab_size=VOCAB_SIZE, shared=True)
    for seed in seeds:
        for name in names:
            config = replace(
                text,
                seed=seed,
                tokenizer=tokenizer,
                model=member(name),
                training=training(steps),
            )
            yield name, Ours(config, RunDirectory(folder / f"{name}-{seed}"))


def learnt(contestant: Ours) -> Learnt:
    """Score a finished training."""
    checkpoint, state = list(contestant.chosen())[-1]
    score = contestant.score(checkpoint, next(iter(contestant.config.data.test)))
    return Learnt(contestant.config.seed, -state.score, score.score, score.signature)


def speeds(
    runs: dict[str, RunDirectory], *, rounds: int, lines: int, seconds: float, threads: int
) -> dict[str, list[Speed]]:
    """Let members take turns, so that all have the same weather."""
    found: dict[str, list[Speed]] = {name: [] for name in runs}
    for number in range(1, rounds + 1):
        for name, directory in runs.items():
            turn = take_turn(directory, lines, seconds=seconds, threads=threads)
            found[name].append(turn)
            print(
                f"round {number}/{rounds}: {name}: training {turn.training:,.0f}, "
                f"decoding {turn.decoding:,.0f} target tokens/s",
                file=sys.stderr,
                flush=True,
            )
    return found


app = new_app(add_completion=False)


@app.command()
def ablation(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="What the trainings are kept in.")],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Multi30k.", show_default="data/multi30k")
    ] = ROOT / "data" / "multi30k",
    members: Annotated[str, typer.Option(help="Besides the base.")] = ",".join(CHANGES),
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each: seeds 1, 2, ...")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps of each.")] = 500,
    rounds: Annotated[int, typer.Option(min=0, help="Turns of each for its speed.")] = 5,
    lines: Annotated[int, typer.Option(min=1, help="Translated in a turn.")] = 500,
    seconds: Annotated[float, typer.Option(min=0.1, help="Trained in a turn.")] = 4.0,
    threads: Annotated[int, typer.Option(min=1, help="Of each.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the members of the family of Transformers, one change at a time from a modern base.

    The base has RMSNorm before each block, rotary positions, SwiGLU, two heads of keys for four of
    queries, and no biases. Every member has as many parameters, made up in the inner width of its
    feed-forward blocks, the same text, batches and steps of the same optimiser (Muon). Loss is that
    of the validation text, BLEU that of the test set, both with their standard deviation over the
    seeds; speeds are multiples of the base's, medians over the rounds, in which members take turns
    and all translations have the same number of tokens.

    The same command goes on where it was stopped, and trains and scores only what is not in DIR.

    Example: python scripts/bench/ablation.py --folder runs/ablation --members alibi,latent
    """
    names = list(dict.fromkeys((BASE, *chosen("--members", members, CHANGES, "member"))))
    text = load_config(CONFIG, [f"data.root={data.resolve()}"])
    check_data_files(text.data)
    torch.set_num_threads(threads)
    found: dict[str, list[Learnt]] = {name: [] for name in names}
    directories: dict[str, RunDirectory] = {}
    try:
        for name, contestant in trainings(text, folder, names, range(1, seeds + 1), steps):
            if not contestant.is_over(float("inf")):
                train_apart(contestant, seconds=float("inf"), threads=threads)
            result = learnt(contestant)
            found[name].append(result)
            directories.setdefault(name, contestant.run)
            print(
                f"{contestant.run.path.name}: loss {result.valid_loss:.3f}, "
                f"BLEU {result.test_bleu:.2f}",
                file=sys.stderr,
                flush=True,
            )
        turns = speeds(directories, rounds=rounds, lines=lines, seconds=seconds, threads=threads)
    except KeyboardInterrupt:
        raise Interrupted(
            str(folder),
            "interrupted",
            signal=signal.SIGINT,
            remedy="re-run the command to resume",
        ) from None
    rows = [
        Row(
            name,
            num_parameters(member(name)),
            cache_bytes(directories[name]),
            found[name],
            turns[name],
        )
        for name in names
    ]
    if as_json:
        typer.echo(json.dumps([row.as_json() for row in rows], indent=2))
        return
    typer.echo(table(rows))
    typer.echo(
        f"\n{steps} steps, {seeds} seeds, BLEU {rows[0].trainings[0].signature}; "
        f"{threads} threads, torch {torch.__version__}, {hardware_name(torch.device('cpu'))}"
    )


if __name__ == "__main__":
    run(app)
