#!/usr/bin/env python
"""Measure what single choices cost or bring: norms, ways to attend, optimisers, the warm-up."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from members.members import BASE
from members.parts import SGD_RATES, WAYS, attention_cost, losses, norm_ratio
from train import DEFAULT_FOLDER, benchmark_config
from trainers.contestants import CPU, Task

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.training import AdamWConfig
from tformer_cli.corpus.pipeline import training_pairs, training_store
from tformer_cli.device import hardware_name
from tformer_cli.process import tune_allocator
from tformer_cli.text.tokenizer import build_tokenizers

LENGTHS = (512, 1024, 2048, 4096)


def attention_ratios(rounds: int, threads: int) -> dict[int, dict[str, float]]:
    """Return the time and the memory of the formula as multiples of the kernel's, by length."""
    found = {}
    for length in LENGTHS:
        turns = [{way: attention_cost(way, length, threads) for way in WAYS} for _ in range(rounds)]
        found[length] = {
            "seconds": median(turn["naive"].seconds / turn["fast"].seconds for turn in turns),
            "memory": median(turn["naive"].mib / turn["fast"].mib for turn in turns),
        }
        print(f"{length}: {found[length]}", file=sys.stderr, flush=True)
    return found


def perplexity_ratios(data: Path, steps: int) -> dict[str, float]:
    """Return validation perplexities as multiples of that by AdamW with a warm-up."""
    config = benchmark_config(data, "tiny", vocab_size=8000)
    training = replace(
        config.training, optimizer=AdamWConfig(learning_rate=2.5e-3), batch_tokens=2048
    )
    config = replace(config, model=BASE, training=training)
    tokenizers = build_tokenizers(
        config.tokenizer, lambda: training_pairs(config.data), config.seed
    )
    store, _ = training_store(config.data, tokenizers)
    found = losses(Task(config, tokenizers, store, torch.float32), steps)
    print(found, file=sys.stderr, flush=True)
    best = min(found[f"sgd {rate:g}"] for rate in SGD_RATES)
    return {
        "sgd": math.exp(best - found["adamw"]),
        "adamw without warm-up": math.exp(found["adamw without warm-up"] - found["adamw"]),
    }


app = new_app(add_completion=False)


@app.command()
def parts(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Multi30k.", show_default="data/multi30k")
    ] = DEFAULT_FOLDER,
    steps: Annotated[int, typer.Option(min=1, help="Of each way to learn.")] = 300,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Of each.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what single choices cost or bring, as ratios taken in one run.

    Norms: time of LayerNorm over RMSNorm's, of 2,048 states. Attention: time and memory of the
    written-out formula over those of torch's kernel, forward and backward, causal, four heads of
    32. Learning: validation perplexity of Multi30k over that by AdamW with a warm-up, for gradient
    descent with momentum (the best of four rates) and for AdamW without the warm-up.

    Example: python scripts/bench/parts.py --steps 100
    """
    torch.set_num_threads(threads)
    tune_allocator()
    result: dict[str, Any] = {
        "layer_norm": {
            str(dim): norm_ratio(dim, rows=2048, rounds=20 * rounds) for dim in (128, 512)
        },
        "naive_attention": attention_ratios(rounds, threads),
        "perplexity": perplexity_ratios(data, steps),
    }
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    for dim, ratio in result["layer_norm"].items():
        typer.echo(f"LayerNorm / RMSNorm, width {dim}: {ratio:.2f} of the time")
    for length, found in result["naive_attention"].items():
        typer.echo(
            f"formula / kernel, {length:,} tokens: {found['seconds']:.2f} of the time, "
            f"{found['memory']:.1f} of the memory"
        )
    for name, ratio in result["perplexity"].items():
        typer.echo(f"{name} / AdamW, {steps} steps: {ratio:.2f} of the perplexity")
    typer.echo(f"{threads} threads, torch {torch.__version__}, {hardware_name(CPU)}")


if __name__ == "__main__":
    run(app)
