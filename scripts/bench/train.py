#!/usr/bin/env python
"""Compare the training speed of tformer on a CPU with two baselines, in turns on one machine.

Tokens are target tokens with a loss: EOS has one, BOS and padding have none.
"""

import contextlib
import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from cli import (
    ALL_CONDITIONS,
    CPU,
    MULTI30K,
    AsJson,
    Conditions,
    Data,
    Rounds,
    Threads,
    VocabSize,
    names_in,
    rounds_on,
    show,
)
from flops import gemm_flops, training_flops
from harness import (
    CONDITIONS,
    Condition,
    Worker,
    columns_table,
    log,
    median_and_range,
    play_rounds,
    ratios,
)
from train_baselines import BASELINES, Measurement, Task

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import data_files, dump_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.config.schema.training import AdamWConfig, TrainingConfig
from tformer_cli.corpus.batch import epoch_plans
from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.run_directory import RunDirectory

# Marian's design, with its dropout, so that all train one network.
NETWORK = EncoderDecoderConfig(
    norm_position="post",
    norm_epsilon=1e-5,
    dropout=0.3,
    attention_dropout=0.0,
    feedforward_dropout=0.0,
)


def network(dim: int, layers: int, heads: int, feedforward_dim: int) -> EncoderDecoderConfig:
    """Return Marian's design in a size."""
    depth = {"num_encoder_layers": layers, "num_decoder_layers": layers}
    return replace(NETWORK, dim=dim, num_heads=heads, feedforward_dim=feedforward_dim, **depth)


SIZES = {"tiny": network(128, 4, 4, 256), "small": network(256, 3, 8, 1024)}
# The name of matrix products among those that take turns.
GEMM = "GEMM"
WARM_UP_STEPS = 10
TRAINING = TrainingConfig(
    optimizer=AdamWConfig(learning_rate=1e-3), label_smoothing=0.1, batch_tokens=4096
)


def benchmark_config(folder: Path, size: str, vocab_size: int) -> Config:
    """Return the config of a size on Multi30k."""
    data = DataConfig(
        source_language="en",
        target_language="de",
        train=(TrainingText(**multi30k_text(folder, "train")),),
        valid=ParallelText(**multi30k_text(folder, "val")),
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


def multi30k_text(folder: Path, split: str) -> dict[str, Path]:
    """Return the files of a split of Multi30k."""
    return {
        side: folder.resolve() / f"{split}.lc.norm.tok.{language}.gz"
        for side, language in (("source", "en"), ("target", "de"))
    }


def compare(
    task: Task,
    *,
    precisions: Sequence[str],
    condition: Condition,
    threads: int,
    rounds: int,
    seconds: float,
    quality_tokens: int | None = None,
) -> dict[str, Any]:
    """Let all baselines train one network in turns of some seconds.

    The textbook has float32 alone. After `quality_tokens` target tokens tformer and Marian are
    validated, in trainings of their own.
    """
    memory: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        run = RunDirectory(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        write_text(run.config_file, dump_config(task.config))
        task.tokenizers.save(run.tokenizer)
        workers = {
            name if precision == "float32" else f"{name} {precision}": stack.enter_context(
                training_worker(name, run, precision, threads=threads, condition=condition)
            )
            for precision in precisions
            for name in BASELINES
            if name != "textbook" or precision == "float32"
        }

        def speed(entry: str) -> float:
            if entry == GEMM:
                return gemm_flops(CPU, torch.float32, size=2048, seconds=0.5) / 1e9
            measured = Measurement(**workers[entry].ask(seconds=seconds))
            memory[entry] = measured.rss_mib
            return measured.tokens_per_second

        speeds = play_rounds([*workers, GEMM], rounds, speed, "target tokens/s, GFLOP/s")
        valid_loss = None
        if quality_tokens is not None:
            steps = _num_batches(task, quality_tokens)
            ours, hf = (workers[name].ask(validate_after=steps) for name in ("ours", "hf"))
            assert ours["num_tokens"] == hf["num_tokens"]
            losses = {"ours": ours["valid_loss"], "hf": hf["valid_loss"]}
            valid_loss = {"target_tokens": ours["num_tokens"], **losses}
    lengths = task.store.source_lengths + 1, task.store.target_lengths + 1
    flops = training_flops(task.config.model, task.tokenizers.target.size, *lengths)
    results = summary(speeds, flops / int(np.sum(lengths[1])))
    peaks = {name: memory[name] for name in BASELINES}
    return results | {"rss_mib": peaks, "valid_loss": valid_loss}


def training_worker(
    name: str,
    run: RunDirectory,
    precision: str = "float32",
    *,
    threads: int,
    condition: Condition = "tuned",
) -> Worker:
    """Start a baseline on the config and the tokenizers of a run folder."""
    return Worker(
        "train_baselines.serve_training",
        condition=condition,
        name=name,
        precision=precision,
        threads=threads,
        folder=str(run.path),
        warm_up=WARM_UP_STEPS,
    )


def _num_batches(task: Task, num_tokens: int) -> int:
    """Return how many of our batches hold about so many target tokens."""
    config, store = task.config, task.store
    plans = epoch_plans(store, batch_tokens=config.training.batch_tokens, seed=config.seed)
    return math.ceil(num_tokens * len(plans[0]) / int(np.sum(store.target_lengths + 1)))


def summary(speeds: Mapping[str, Sequence[float]], flops_per_token: float) -> dict[str, Any]:
    """Return medians over the rounds; `rounds` has the numbers of each round.

    `speeds` are those of each entry, and of matrix products in GFLOP/s.
    """

    def best(name: str) -> Sequence[float]:
        return max((speeds[entry] for entry in speeds if entry.split()[0] == name), key=median)

    by_round = {
        **{name: speeds[name] for name in BASELINES},
        "ours_best": best("ours"),
        "hf_best": best("hf"),
        "ratio_hf": ratios(speeds["ours"], speeds["hf"]),
        "ratio_hf_best": ratios(best("ours"), best("hf")),
        "ratio_textbook": ratios(speeds["ours"], speeds["textbook"]),
    }
    return {
        **{name: median(numbers) for name, numbers in by_round.items()},
        "rounds": by_round,
        "gemm_share": median(ratios(speeds["ours"], speeds[GEMM])) * flops_per_token / 1e9,
    }


MEDIANS = {
    "target tokens/s: tformer": "ours",
    "  at its best": "ours_best",
    "  transformers' Marian": "hf",
    "  Marian at its best": "hf_best",
    "  textbook": "textbook",
    "tformer / Marian": "ratio_hf",
    "  each at its best": "ratio_hf_best",
    "tformer / textbook": "ratio_textbook",
}
TITLES = {"ours": "tformer", "hf": "transformers' Marian", "textbook": "textbook"}


def cells(result: dict[str, Any]) -> dict[str, str]:
    """Return the column of one size and condition."""
    column = {title: median_and_range(result["rounds"][key]) for title, key in MEDIANS.items()}
    column["share of GEMM peak"] = f"{result['gemm_share']:.0%}"
    for title, key, form in (("peak MiB", "rss_mib", ",.0f"), ("valid loss", "valid_loss", ".4f")):
        values = result[key] or {}
        column |= {
            f"{title}: {TITLES[name]}": format(values[name], form)
            for name in TITLES
            if name in values
        }
    return column


app = new_app(add_completion=False)


@app.command()
def train(
    data: Data = MULTI30K,
    sizes: Annotated[
        str, typer.Option(help="tiny: 4+4 layers of width 128; small: 3+3 of 256.")
    ] = ",".join(SIZES),
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of a turn.")] = 5.0,
    rounds: Rounds = 5,
    precision: Annotated[
        Literal["float32", "both"],
        typer.Option(help="both: tformer and Marian in bfloat16 as well, each at its best."),
    ] = "both",
    conditions: Conditions = ALL_CONDITIONS,
    threads: Threads = 2,
    vocab_size: VocabSize = 10_000,
    quality_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Compare validation losses after N target tokens."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the training speed of tformer on a CPU with transformers' Marian and a textbook loop.

    Marian has a good loop: batches of similar length, SDPA, fused AdamW. The textbook has torch's
    nn.Transformer, random sentences padded to the longest, the cross-entropy of every position, and
    plain AdamW. The rest is the same for all: text, vocabulary, sizes, about 4,096 target tokens a
    batch, dropout of 0.3 on embeddings and on the output of each block, label smoothing.

    Each is a process of its own, in the condition `default` with the settings of nobody, in `tuned`
    with the environment and the allocator of tformer's command line. They take turns, in every
    second round backwards, and the speed of matrix products is measured between the rounds. Speeds
    and ratios are medians over the rounds, with their range.

    Example: python scripts/bench/train.py --sizes tiny --json
    """
    names = names_in("--sizes", sizes, SIZES, "size")
    columns = names_in("--conditions", conditions, CONDITIONS, "condition")
    torch.set_num_threads(threads)
    configs = {name: benchmark_config(data, name, vocab_size) for name in names}
    # Text and vocabulary are the same for all sizes.
    task = Task.of(configs[names[0]])
    results = {}
    for (name, config), condition in itertools.product(configs.items(), columns):
        log(f"{name} {condition}")
        results[f"{name} {condition}"] = compare(
            replace(task, config=config),
            condition=condition,
            precisions=("float32", "bfloat16") if precision == "both" else ("float32",),
            threads=threads,
            rounds=rounds,
            seconds=seconds,
            quality_tokens=quality_tokens,
        )
    columns_of = {name: cells(result) for name, result in results.items()}
    show(results, as_json, lambda: columns_table("", columns_of), rounds_on(rounds, threads))


if __name__ == "__main__":
    run(app)
