#!/usr/bin/env python
"""Compare how fast tformer trains on a CPU with two others, in one run on one machine.

Tokens are those of the target that carry a loss: `</s>` is one, `<s>` and padding are none.
"""

import contextlib
import itertools
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from choices import chosen
from conditions import CONDITIONS, Condition
from trainers.contestants import CONTESTANTS, CPU
from trainers.figures import (
    Round,
    entry_name,
    flops_per_target_token,
    gemm_flops,
    summary,
    table,
)
from trainers.worker import Measurement, Worker

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import data_files, dump_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, ParallelText, TrainingText
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.config.schema.training import AdamWConfig, TrainingConfig
from tformer_cli.corpus.pipeline import epoch_plans, training_pairs, training_store
from tformer_cli.corpus.store import TokenStore
from tformer_cli.device import hardware_name
from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "data" / "multi30k"

# The design of Marian, and the places where it has dropout by default, so all are one network.
NETWORK = EncoderDecoderConfig(
    norm_position="post",
    norm_epsilon=1e-5,
    dropout=0.3,
    attention_dropout=0.0,
    feedforward_dropout=0.0,
)
SIZES = {
    "tiny": replace(
        NETWORK,
        dim=128,
        num_encoder_layers=4,
        num_decoder_layers=4,
        num_heads=4,
        feedforward_dim=256,
    ),
    "small": replace(
        NETWORK,
        dim=256,
        num_encoder_layers=3,
        num_decoder_layers=3,
        num_heads=8,
        feedforward_dim=1024,
    ),
}
TRAINING = TrainingConfig(
    optimizer=AdamWConfig(learning_rate=1e-3), label_smoothing=0.1, batch_tokens=4096
)


def compare(
    config: Config,
    tokenizers: Tokenizers,
    store: TokenStore,
    *,
    precisions: Sequence[str],
    condition: Condition,
    threads: int,
    rounds: int,
    warm_up: int,
    steps: int | None = None,
    seconds: float | None = None,
    quality_tokens: int | None = None,
) -> dict[str, Any]:
    """Let all contestants train one network.

    Args:
        config: the network, the text and the loop.
        tokenizers: of the text.
        store: the text.
        precisions: of tformer and Marian; the textbook has float32.
        condition: environment and allocator of all of them.
        threads: of each contestant.
        rounds: how many turns each has; in every second one they take turns backwards.
        warm_up: steps of each before the first turn.
        steps: of a turn.
        seconds: of a turn.
        quality_tokens: after how many target tokens tformer and Marian are validated, in trainings
            of their own; None for no such trainings.

    Returns:
        The figures, as plain data.

    Raises:
        TrainingError: a contestant has failed.
    """
    entries = [
        (name, precision)
        for precision in precisions
        for name in CONTESTANTS
        if name != "textbook" or precision == "float32"
    ]
    with contextlib.ExitStack() as stack:
        run = RunDirectory(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        write_text(run.config_file, dump_config(config))
        tokenizers.save(run.tokenizer)
        workers = {
            entry_name(*entry): stack.enter_context(
                Worker(*entry, threads, run, condition=condition, warm_up=warm_up)
            )
            for entry in entries
        }
        surroundings = {entry: worker.answer() for entry, worker in workers.items()}
        played: list[Round] = []
        for number in range(1, rounds + 1):
            turns = {
                entry: Measurement(**workers[entry].ask(steps=steps, seconds=seconds))
                for entry in in_turn(workers, number)
            }
            played.append(Round(turns, gemm_flops()))
            print(f"round {number}/{rounds}: {played[-1]}", file=sys.stderr, flush=True)
        validated = None
        if quality_tokens is not None:
            ours, hf = (
                workers[name].ask(learn=_steps(config, store, quality_tokens))
                for name in ("ours", "hf")
            )
            assert ours["num_tokens"] == hf["num_tokens"]
            validated = {
                "target_tokens": ours["num_tokens"],
                "ours": ours["valid_loss"],
                "hf": hf["valid_loss"],
            }
    flops = flops_per_target_token(
        config.model,
        tokenizers.target.size,
        store.source_lengths + 1,
        store.target_lengths + 1,
    )
    return summary(played, flops) | {"valid_loss": validated, "surroundings": surroundings}


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """Return who plays in which order in a round, so that nobody always follows the same one."""
    return list(names)[:: 1 if number % 2 else -1]


def benchmark_config(folder: Path, size: str, vocab_size: int) -> Config:
    """Return what all contestants go by.

    Raises:
        UsageError: the folder lacks a file of the corpus.
    """
    sides = {"source": "en", "target": "de"}

    def text(split: str) -> dict[str, Path]:
        return {
            side: folder.resolve() / f"{split}.lc.norm.tok.{language}.gz"
            for side, language in sides.items()
        }

    data = DataConfig(
        source_language=sides["source"],
        target_language=sides["target"],
        train=(TrainingText(**text("train")),),
        valid=ParallelText(**text("val")),
    )
    missing = [path.name for _, path in data_files(data) if not path.is_file()]
    if missing:
        raise UsageError(
            "--data",
            f"the folder has no {', '.join(missing)}",
            got=str(folder),
            remedy="scripts/get_multi30k.py fetches the corpus",
        )
    tokenizer = SubwordConfig(algorithm="bpe", vocab_size=vocab_size, shared=True)
    return Config(data=data, tokenizer=tokenizer, model=SIZES[size], training=TRAINING)


def _steps(config: Config, store: TokenStore, num_tokens: int) -> int:
    """Return how many of our batches have some target tokens, about."""
    plans = epoch_plans(store, batch_tokens=config.training.batch_tokens, seed=config.seed)
    batches = len(plans[0])
    return math.ceil(num_tokens * batches / int(np.sum(store.target_lengths + 1)))


app = new_app(add_completion=False)


@app.command()
def train(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Multi30k.", show_default="data/multi30k")
    ] = DEFAULT_FOLDER,
    sizes: Annotated[
        str, typer.Option(help="tiny: 4+4 layers of width 128; small: 3+3 of 256.")
    ] = ",".join(SIZES),
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of a turn.")] = 5.0,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Optimiser steps of a turn, in place of --seconds."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 5,
    precision: Annotated[
        Literal["float32", "both"],
        typer.Option(help="both: tformer and Marian in bfloat16 as well, each at its best."),
    ] = "both",
    conditions: Annotated[
        str,
        typer.Option(help="default: nobody has settings; tuned: all have those of tformer."),
    ] = ",".join(CONDITIONS),
    warm_up: Annotated[int, typer.Option(min=1, help="Steps of each before its turns.")] = 10,
    threads: Annotated[int, typer.Option(min=1, help="Of each.")] = 2,
    vocab_size: Annotated[
        int, typer.Option(min=32, help="Of the vocabulary that both languages share.")
    ] = 10_000,
    quality_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Compare validation losses after N target tokens, too."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare how fast tformer trains on a CPU with transformers' Marian and a textbook loop.

    Marian has a good loop: batches of similar length, SDPA, fused AdamW. The textbook has torch's
    nn.Transformer, random sentences padded to the longest, the cross-entropy of every position, and
    plain AdamW. The rest is the same for all: text, vocabulary, sizes, about 4,096 target tokens a
    batch, dropout of 0.3 on embeddings and on the output of each block, label smoothing.

    Each is a process of its own. In the condition `default` none has settings for its environment
    or its allocator, in `tuned` all have those of tformer's command line. They take turns, in every
    second round backwards, and between the rounds the machine's rate of matrix products is taken.
    Speeds are medians over the rounds with their range; a ratio is the median of the rounds'
    ratios.

    Example: python scripts/bench/train.py --sizes tiny --json
    """
    names = chosen("--sizes", sizes, SIZES, "size")
    columns = chosen("--conditions", conditions, CONDITIONS, "condition")
    torch.set_num_threads(threads)
    configs = {name: benchmark_config(data, name, vocab_size) for name in names}
    first = configs[names[0]]
    tokenizers = build_tokenizers(first.tokenizer, lambda: training_pairs(first.data), first.seed)
    store, _ = training_store(first.data, tokenizers)
    results = {}
    for (name, config), condition in itertools.product(configs.items(), columns):
        column = f"{name} {condition}"
        print(column, file=sys.stderr)
        results[column] = compare(
            config,
            tokenizers,
            store,
            condition=condition,
            warm_up=warm_up,
            precisions=("float32", "bfloat16") if precision == "both" else ("float32",),
            threads=threads,
            rounds=rounds,
            steps=steps,
            seconds=seconds if steps is None else None,
            quality_tokens=quality_tokens,
        )
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        typer.echo(table(results))
        typer.echo(
            f"{rounds} rounds, {threads} threads, torch {torch.__version__}, {hardware_name(CPU)}"
        )


if __name__ == "__main__":
    run(app)
