#!/usr/bin/env python
"""Compare the decoding speed of tformer on a CPU with three baselines, in turns on one machine.

They are transformers' `generate`, and CTranslate2 in float32 and int8. tformer also takes
CTranslate2 as its engine. All have the same weights and sentences.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import cli
import harness
import torch
import typer
from decode_baselines import BASELINES, Setting, Task
from flops import CPU
from train import benchmark_config
from train_baselines import BASE, SMALL, TINY

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.config import Config
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.device import has_vnni
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.training.trainer import train

TITLES = {
    "ours": "tformer",
    "ours_bfloat16": "tformer bfloat16",
    "ours_int8": "tformer int8",
    "hf": "transformers' Marian",
    "ctranslate2_float32": "CTranslate2 float32",
    "ctranslate2_int8": "CTranslate2 int8",
    "ctranslate2_backend": "tformer by CTranslate2",
}
# The one translates by the other.
BACKEND, ENGINE = "ctranslate2_backend", "ctranslate2_float32"
OTHERS = tuple(name for name in TITLES if name != "ours")
# Without VNNI tformer refuses int8.
COMPARABLE = tuple(name for name in OTHERS if name != "ours_int8" or has_vnni())
SEARCHES = {"greedy": 1, "beam5": 5}  # beam size
MODES = {"file": False, "one": True}  # whether sentences come one at a time
# What is done for the first time takes longer, shapes of batches above all.
WARM_UP_LINES = 64
# Settings are tried on so many sentences: two of the largest batches, for two workers.
TRIAL_SENTENCES = 512
ROWS = {
    "bleu": ("BLEU:", ".2f"),
    "peak_mib": ("peak MiB:", ",.0f"),
    "settings": ("fastest setting:", ""),
}
SIZES = {"tiny": TINY, "small": SMALL, "base": BASE}
# A deep and wide post-norm network diverges at the learning rate of the others.
LEARNING_RATES = {"tiny": 3e-3, "small": 3e-3, "base": 1e-3}
BASE_STEPS = 150
MODELS = harness.ROOT / "runs" / "decode"


def decoding_config(folder: Path, size: str, vocab_size: int, steps: int) -> Config:
    """Return the config of a model to translate with."""
    return benchmark_config(
        folder,
        vocab_size,
        *SIZES[size],
        # Few steps overfit little, and a post-norm network wants a long warm-up.
        "model.dropout=0.1",
        f"training.optimizer={{kind: muon, learning_rate: {LEARNING_RATES[size]}}}",
        "training.batch_tokens=2048",
        f"training.schedule={{kind: cosine, warmup_steps: {steps // 4}}}",
        f"training.max_steps={steps}",
        f"training.validate_every={steps}",
        "training.validation_decoding={kind: greedy}",
        "training.save_every=100",
        "training.keep_checkpoints=1",
    )


def pairs_to_translate(config: Config) -> list[tuple[str, str]]:
    """Return the pairs of the first test set, or of the validation text where there is none."""
    text = next(iter(config.data.test.values()), config.data.valid)
    return list(read_pairs(text.source, text.target))


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """Return so many items at equal distances, or all where there are fewer."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def worker_of(name: str, task: Task) -> harness.Worker:
    """Start a baseline in a process of its own."""
    return harness.Worker("decode_baselines.serve_translation", name=name, task=asdict(task))


def turn(worker: harness.Worker, setting: Setting, lines: Sequence[str]) -> float:
    """Let a baseline translate lines; return sentences per second."""
    return len(lines) / worker.ask(setting=setting, lines=lines)["seconds"]


def fastest_setting(name: str, task: Task, lines: Sequence[str]) -> Setting:
    """Return the setting of a baseline with the best of two turns.

    The process is not used again: memory of other settings would count as its own.
    """
    _, settings_of = BASELINES[name]
    first, *others = settings_of(task)
    if not others:
        return first
    speeds = {}
    with worker_of(name, task) as worker:
        for setting in (first, *others):
            turn(worker, setting, lines[:WARM_UP_LINES])
            speeds[setting] = max(turn(worker, setting, lines) for _ in range(2))
    return max(speeds, key=lambda setting: speeds[setting])


def compare(
    task: Task, names: Sequence[str], pairs: Sequence[tuple[str, str]], config: Config, rounds: int
) -> dict[str, Any]:
    """Let baselines translate pairs by one search in one mode.

    Returns the sentences per second of each round, BLEU, peak memory and setting by baseline.
    """
    lines, references = map(list, zip(*pairs, strict=True))
    metric = build_metric("bleu", config.evaluation, config.data.target_language)
    trial = spread(lines, TRIAL_SENTENCES)
    settings = {name: fastest_setting(name, task, trial) for name in names}
    bleu, memory = {}, {}
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(worker_of(name, task)) for name in names}
        for name, worker in workers.items():
            turn(worker, settings[name], lines[:WARM_UP_LINES])
            # Watching takes time, so this turn has no speed.
            with harness.watched(worker.process.pid) as samples:
                texts = worker.ask(setting=settings[name], lines=lines)["texts"]
            bleu[name] = metric.score(texts, references).score
            memory[name] = max(samples) / 2**20
        speeds = harness.play_rounds(
            names, rounds, lambda name: turn(workers[name], settings[name], lines), "sentences/s"
        )
    chosen = {name: str(setting) for name, setting in settings.items()}
    return {"speeds": speeds, "bleu": bleu, "peak_mib": memory, "settings": chosen}


def cells(result: dict[str, Any]) -> dict[str, str]:
    """Return the column of one search and mode: medians of the rounds, with their range."""
    speeds = result["speeds"]
    column = {
        f"sentences/s: {TITLES[name]}": harness.median_and_range(speeds[name]) for name in speeds
    } | harness.times_as_fast(speeds, TITLES)
    if {BACKEND, ENGINE} <= speeds.keys():
        times = harness.ratios(speeds[BACKEND], speeds[ENGINE])
        column[f"times as fast as its engine: {TITLES[BACKEND]}"] = harness.median_and_range(times)
    return column | {
        f"{title} {TITLES[name]}": format(value, form)
        for key, (title, form) in ROWS.items()
        for name, value in result[key].items()
    }


app = new_app(add_completion=False)


@app.command()
def decode(
    data: cli.Data = cli.MULTI30K,
    sizes: Annotated[
        str,
        typer.Option(help="tiny: 4+4 layers of width 128; small: 3+3 of 256; base: 6+6 of 512."),
    ] = ",".join(SIZES),
    steps: Annotated[
        int, typer.Option(min=1, help=f"Steps of training tiny and small; base has {BASE_STEPS}.")
    ] = 1500,
    others: Annotated[str, typer.Option(help="Baselines besides tformer.")] = ",".join(COMPARABLE),
    searches: Annotated[str, typer.Option(help="Searches.")] = ",".join(SEARCHES),
    rounds: cli.Rounds = 3,
    threads: cli.Threads = 2,
    sentences: Annotated[
        int | None,
        typer.Option(min=1, help="Sentences of the file.", show_default="the whole test text"),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="Sentences that are translated one at a time.")
    ] = 100,
    vocab_size: cli.VocabSize = 10_000,
    as_json: cli.AsJson = False,
) -> None:
    """Compare the decoding speed of tformer on a CPU with three baselines.

    transformers' Marian translates by its own `generate`, CTranslate2 with two workers of one
    thread each, and tformer once more with CTranslate2 as its engine. All have the weights of one
    model, which is trained far enough to end its sentences by itself.

    Each is a process of its own, with the environment and the allocator of tformer's command line.
    Batch sizes and numbers of processes are tried beforehand, and the fastest are kept. They take
    turns, in every second round backwards; speeds and ratios are medians over the rounds, with
    their range; --json has each round. Encoding and decoding of text count, loading does not.
    `file` is the test text, `one` a sample of it, one sentence at a time. Memory is that of all
    processes of a baseline in a turn of its own.

    Example: python scripts/bench/decode.py --sizes tiny --json
    """
    names = ("ours", *cli.names_in("--others", others, OTHERS, "baseline"))
    chosen = cli.names_in("--searches", searches, SEARCHES, "search")
    torch.set_num_threads(threads)
    results: dict[str, Any] = {}
    for size in cli.names_in("--sizes", sizes, SIZES, "size"):
        num_steps = BASE_STEPS if size == "base" else steps
        run = RunDirectory(MODELS / f"{size}-{num_steps}")
        # It is trained unless that is done.
        train(decoding_config(data, size, vocab_size, num_steps), run, device=CPU)
        model = load_trained_model(run)
        pairs = pairs_to_translate(model.config)
        pairs = spread(pairs, sentences or len(pairs))
        with tempfile.TemporaryDirectory() as exports:
            for quantization in ("float32", "int8"):
                CTranslate2Format(quantization).save(model, Path(exports) / quantization)
            for search, mode in itertools.product(chosen, MODES):
                harness.log(f"{run.path.name} {search} {mode}")
                task = Task(str(run.path), exports, SEARCHES[search], MODES[mode], threads)
                translated = spread(pairs, sample) if task.alone else pairs
                result = compare(task, names, translated, model.config, rounds)
                results.setdefault(size, {})[f"{search} {mode}"] = result

    def tables() -> str:
        columns = {
            size: {title: cells(result) for title, result in by_title.items()}
            for size, by_title in results.items()
        }
        return "\n\n".join(harness.columns_table(*item) for item in columns.items())

    cli.show(results, as_json, tables, cli.rounds_on(rounds, threads))


if __name__ == "__main__":
    run(app)
