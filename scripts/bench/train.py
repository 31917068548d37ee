#!/usr/bin/env python
"""Compare the training speed of tformer on a CPU with a baseline, in turns on one machine.

Tokens are target tokens with a loss: EOS has one, BOS and padding have none.
"""

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import cli
import harness
import torch
import typer
from flops import CPU, gemm_flops, training_flops
from train_baselines import BASELINES, CONFIG, PLAIN, SMALL, TINY, prepared, training_workers

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.text.tokenizer import load_tokenizers

# The name of matrix products among those that take turns.
GEMM = "GEMM"
TITLES = {"ours": "tformer", "hf": "transformers' Marian"}
SIZES = {"tiny": TINY, "small": SMALL}


def benchmark_config(folder: Path, vocab_size: int, *settings: str) -> Config:
    """Return a config of Multi30k, with further settings."""
    text = (f"data.root={folder.resolve()}", f"tokenizer.vocab_size={vocab_size}")
    optimizer = "training.optimizer={kind: adamw, learning_rate: 1e-3}"
    training = (optimizer, "training.batch_tokens=4096", "model.dropout=0.3")
    config = load_config(CONFIG, [*PLAIN, *text, *training, *settings])
    check_data_files(config.data)
    return config


def compare(
    config: Config, precisions: Sequence[str], *, threads: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """Let all baselines train one network in turns of some seconds.

    Returns the speeds of each round, by baseline and, other than float32, precision.
    """
    memory: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        entries = {}
        for precision in precisions:
            training = replace(config.training, precision=precision)
            run = prepared(replace(config, training=training), folder / precision)
            suffix = "" if precision == "float32" else f" {precision}"
            entries |= {name + suffix: (name, run) for name in BASELINES}
        workers = stack.enter_context(training_workers(entries, threads))

        def speed(entry: str) -> float:
            if entry == GEMM:
                return gemm_flops(CPU, torch.float32, (2048, 2048, 2048)) / 1e9
            measured = workers[entry].ask(seconds=seconds)
            memory[entry] = measured["peak_mib"]
            return measured["tokens_per_second"]

        speeds = harness.play_rounds([*workers, GEMM], rounds, speed, "target tokens/s, GFLOP/s")
        tokenizers = load_tokenizers(run.tokenizer)
        store, _ = training_store(config.data, tokenizers)
    lengths = store.source_lengths + 1, store.target_lengths + 1
    flops = training_flops(config.model, tokenizers.target.size, *lengths)
    peaks = {name: memory[name] for name in BASELINES}
    return {"speeds": speeds, "peak_mib": peaks, "flops_per_token": flops / int(lengths[1].sum())}


def cells(result: dict[str, Any]) -> dict[str, str]:
    """Return the column of one size: medians of the rounds, with their range."""
    speeds = result["speeds"]

    def best(name: str) -> Sequence[float]:
        return max((speeds[entry] for entry in speeds if entry.split()[0] == name), key=median)

    medians = {
        "target tokens/s: tformer": speeds["ours"],
        "  at its best": best("ours"),
        "  transformers' Marian": speeds["hf"],
        "  Marian at its best": best("hf"),
        "tformer / Marian": harness.ratios(speeds["ours"], speeds["hf"]),
        "  each at its best": harness.ratios(best("ours"), best("hf")),
    }
    share = median(harness.ratios(speeds["ours"], speeds[GEMM])) * result["flops_per_token"] / 1e9
    return (
        {title: harness.median_and_range(numbers) for title, numbers in medians.items()}
        | {"share of GEMM peak": f"{share:.0%}"}
        | {f"peak MiB: {TITLES[name]}": f"{mib:,.0f}" for name, mib in result["peak_mib"].items()}
    )


app = new_app(add_completion=False)


@app.command()
def train(
    data: cli.Data = cli.MULTI30K,
    sizes: Annotated[
        str, typer.Option(help="tiny: 4+4 layers of width 128; small: 3+3 of 256.")
    ] = ",".join(SIZES),
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of a turn.")] = 5.0,
    rounds: cli.Rounds = 5,
    precision: Annotated[
        Literal["float32", "both"],
        typer.Option(help="both: tformer and Marian in bfloat16 as well, each at its best."),
    ] = "both",
    threads: cli.Threads = 2,
    vocab_size: cli.VocabSize = 10_000,
    as_json: cli.AsJson = False,
) -> None:
    """Compare the training speed of tformer on a CPU with transformers' Marian.

    Marian has a good loop: batches of similar length, SDPA, fused AdamW. Text, vocabulary, sizes,
    about 4,096 target tokens a batch, dropout of 0.3 on embeddings and on the output of each block,
    and label smoothing are the same for both.

    Each is a process of its own, with the environment and the allocator of tformer's command line.
    They take turns, in every second round backwards, and the speed of matrix products is measured
    between the rounds. Speeds and ratios are medians over the rounds, with their range; --json has
    each round.

    Example: python scripts/bench/train.py --sizes tiny --json
    """
    names = cli.names_in("--sizes", sizes, SIZES, "size")
    torch.set_num_threads(threads)
    configs = {name: benchmark_config(data, vocab_size, *SIZES[name]) for name in names}
    precisions = ("float32", "bfloat16") if precision == "both" else ("float32",)
    results = {}
    for name, config in configs.items():
        harness.log(name)
        results[name] = compare(config, precisions, threads=threads, rounds=rounds, seconds=seconds)
    columns_of = {name: cells(result) for name, result in results.items()}
    note = cli.rounds_on(rounds, threads)
    cli.show(results, as_json, lambda: harness.columns_table("", columns_of), note)


if __name__ == "__main__":
    run(app)
