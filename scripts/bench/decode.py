#!/usr/bin/env python
"""Compare the decoding speed of tformer on a CPU with four baselines, in turns on one machine.

They are transformers' `generate`, a textbook loop without KV cache, and CTranslate2 in float32 and
int8. tformer also takes CTranslate2 as its engine. All have the same weights and sentences.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from cli import (
    ALL_CONDITIONS,
    CPU,
    MULTI30K,
    ROOT,
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
from decode_baselines import BASELINES, Setting, Task
from harness import (
    CONDITIONS,
    Condition,
    Worker,
    columns_table,
    log,
    median_and_range,
    play_rounds,
    ratios,
    spread,
    watched,
)
from train import SIZES as TRAINING_SIZES
from train import TRAINING, benchmark_config, multi30k_text, network

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.config import BleuConfig, Config, EvaluationConfig
from tformer_cli.config.schema.text import ParallelText
from tformer_cli.config.schema.training import CosineSchedule, MuonConfig
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
    "textbook": "textbook",
    "ctranslate2_float32": "CTranslate2 float32",
    "ctranslate2_int8": "CTranslate2 int8",
    "ctranslate2_backend": "tformer by CTranslate2",
}
# Who translates by the engine of another.
BACKENDS = {"ctranslate2_backend": "ctranslate2_float32"}
OTHERS = tuple(name for name in TITLES if name != "ours")
# Without VNNI tformer refuses int8.
COMPARABLE = tuple(name for name in OTHERS if name != "ours_int8" or has_vnni())
SEARCHES = {"greedy": 1, "beam5": 5}  # beam size
MODES = {"file": False, "one": True}  # whether sentences come one at a time
# What is done for the first time takes longer, shapes of batches above all.
WARM_UP_LINES = 64
# Settings are tried on so many sentences: two of the largest batches, for two workers.
TRIAL_SENTENCES = 512
# Keys of the results, with their titles in the table.
MEDIANS = {
    "speeds": "sentences/s:",
    "ratios": "times as fast tformer is as",
    "backend_ratios": "times as fast as its engine:",
}
ROWS = {
    "bleu": ("BLEU:", ".2f"),
    "memory_mib": ("peak MiB:", ",.0f"),
    "settings": ("fastest setting:", ""),
}
TEST_SET = "test_2016_flickr"
SIZES = TRAINING_SIZES | {"base": network(512, 6, 8, 2048)}
# A deep and wide post-norm network diverges at the learning rate of the others.
LEARNING_RATES = {"tiny": 3e-3, "small": 3e-3, "base": 1e-3}
BASE_STEPS = 150
MODELS = ROOT / "runs" / "decode"


def decoding_config(folder: Path, size: str, vocab_size: int, steps: int) -> Config:
    """Return the config of a model to translate with."""
    config = benchmark_config(folder, "tiny", vocab_size)
    test = {TEST_SET: ParallelText(**multi30k_text(folder, TEST_SET))}
    return replace(
        config,
        data=replace(config.data, test=test),
        # Few steps overfit little, and a post-norm network wants a long warm-up.
        model=replace(SIZES[size], dropout=0.1),
        training=replace(
            TRAINING,
            optimizer=MuonConfig(learning_rate=LEARNING_RATES[size]),
            batch_tokens=2048,
            schedule=CosineSchedule(warmup_steps=steps // 4),
            max_steps=steps,
            validate_every=steps,
            save_every=100,
            keep_checkpoints=1,
        ),
        # The text is tokenized already.
        evaluation=EvaluationConfig(bleu=BleuConfig(tokenize="none")),
    )


def trained(size: str, config: Config, models: Path = MODELS) -> RunDirectory:
    """Train a model unless it is trained already; return its run."""
    run = RunDirectory(models / f"{size}-{config.training.max_steps}")
    train(config, run, device=CPU)
    return run


def pairs_to_translate(config: Config) -> list[tuple[str, str]]:
    """Return the pairs of the first test set, or of the validation text where there is none."""
    text = next(iter(config.data.test.values()), config.data.valid)
    return list(read_pairs(text.source, text.target))


@dataclass(frozen=True, slots=True)
class Samples:
    """How many sentences are translated; None for the whole test text."""

    file: int | None  # as a file
    one: int  # one at a time
    textbook: int  # by the textbook, which would take hours for all

    def of(
        self, pairs: Sequence[tuple[str, str]], name: str, *, alone: bool
    ) -> Sequence[tuple[str, str]]:
        """Return what a baseline translates of the test text."""
        if self.file is not None:
            pairs = spread(pairs, self.file)
        if alone:
            pairs = spread(pairs, self.one)
        return spread(pairs, self.textbook) if name == "textbook" else pairs


class DecodeWorker(Worker):
    """A baseline that translates in a process of its own."""

    def __init__(self, name: str, task: Task) -> None:
        call, arguments = "decode_baselines.serve_translation", {"name": name, "task": asdict(task)}
        super().__init__(call, condition=task.condition, **arguments)

    def use(self, setting: Setting, lines: Sequence[str]) -> None:
        """Load the model for a setting, and warm up."""
        self.ask(use=setting)
        self.ask(lines=lines[:WARM_UP_LINES])

    def speed(self, lines: Sequence[str]) -> float:
        """Translate lines; return sentences per second."""
        return len(lines) / self.ask(lines=lines)["seconds"]

    def watched_turn(self, lines: Sequence[str]) -> tuple[list[str], int]:
        """Return translations and peak memory in bytes; watching takes time, so no speed."""
        with watched(self.process.pid) as samples:
            texts = self.ask(lines=lines)["texts"]
        return texts, max(samples)


def speeds_by_setting(name: str, task: Task, lines: Sequence[str]) -> dict[Setting, float]:
    """Return sentences per second of the better of two turns, for each setting of a baseline.

    The process is not used again: memory of other settings would count as its own.
    """
    with DecodeWorker(name, task) as worker:
        speeds = {}
        for setting in BASELINES[name].settings(task):
            worker.use(setting, lines)
            speeds[setting] = max(worker.speed(lines) for _ in range(2))
    return speeds


def compare(
    run: RunDirectory,
    names: Sequence[str],
    searches: Sequence[str],
    samples: Samples,
    *,
    condition: Condition,
    threads: int,
    rounds: int,
) -> dict[str, Any]:
    """Let baselines translate the test text of a run; return results by search and mode."""
    model = load_trained_model(run)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as exports:
        for quantization in ("float32", "int8"):
            CTranslate2Format(quantization).save(model, Path(exports) / quantization)
        for search, (mode, alone) in itertools.product(searches, MODES.items()):
            log(f"{run.path.name} {search} {mode} {condition}")
            task = Task(
                str(run.path), exports, SEARCHES[search], alone, threads, condition=condition
            )
            pairs = pairs_to_translate(model.config)
            texts = {name: samples.of(pairs, name, alone=alone) for name in names}
            cell = compare_one(task, texts, model.config, rounds)
            results.setdefault(search, {})[mode] = cell
    return results


def compare_one(
    task: Task, texts: Mapping[str, Sequence[tuple[str, str]]], config: Config, rounds: int
) -> dict[str, Any]:
    """Let baselines translate, each its own pairs, by one search in one mode."""
    sources = {name: [source for source, _ in text] for name, text in texts.items()}
    metric = build_metric("bleu", config.evaluation, config.data.target_language)
    results: dict[str, dict[str, Any]] = {key: {} for key in ROWS}
    with contextlib.ExitStack() as stack:
        workers: dict[str, DecodeWorker] = {}
        for name, lines in sources.items():
            best, *others = BASELINES[name].settings(task)
            if others:
                tried = speeds_by_setting(name, task, spread(lines, TRIAL_SENTENCES))
                best = max(tried, key=lambda setting: tried[setting])
            results["settings"][name] = str(best)
            workers[name] = stack.enter_context(DecodeWorker(name, task))
            workers[name].use(best, lines)
        for name, worker in workers.items():
            translations, memory = worker.watched_turn(sources[name])
            references = [reference for _, reference in texts[name]]
            results["bleu"][name] = metric.score(translations, references).score
            results["memory_mib"][name] = memory / 2**20
        speeds = play_rounds(
            workers, rounds, lambda name: workers[name].speed(sources[name]), "sentences/s"
        )
    return summary(speeds) | results


def summary(speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians over the rounds of sentences per second.

    `ratios`: how many times as fast as each other baseline ours is. `backend_ratios`: how many
    times as fast as its engine by itself a backend is. `rounds`: the same of every round.
    """
    by_round = {
        "speeds": speeds,
        "ratios": {name: ratios(speeds["ours"], speeds[name]) for name in speeds if name != "ours"},
        "backend_ratios": {
            name: ratios(speeds[name], speeds[engine])
            for name, engine in BACKENDS.items()
            if name in speeds and engine in speeds
        },
    }
    medians = {
        key: {name: median(numbers) for name, numbers in values.items()}
        for key, values in by_round.items()
    }
    return medians.pop("speeds") | medians | {"rounds": by_round}


def cells(result: dict[str, Any]) -> dict[str, str]:
    """Return the column of one size, condition, search and mode."""
    column = {
        f"{title} {TITLES[name]}": median_and_range(numbers)
        for key, title in MEDIANS.items()
        for name, numbers in result["rounds"][key].items()
    }
    return column | {
        f"{title} {TITLES[name]}": format(value, form)
        for key, (title, form) in ROWS.items()
        for name, value in result[key].items()
    }


def table(size: str, results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a table of one size and condition with a column for each search and mode."""
    columns = {
        f"{search} {mode}": cells(result)
        for search, modes in results.items()
        for mode, result in modes.items()
    }
    return columns_table(size, columns)


app = new_app(add_completion=False)


@app.command()
def decode(
    data: Data = MULTI30K,
    sizes: Annotated[
        str,
        typer.Option(help="tiny: 4+4 layers of width 128; small: 3+3 of 256; base: 6+6 of 512."),
    ] = ",".join(SIZES),
    steps: Annotated[
        int, typer.Option(min=1, help=f"Steps of training tiny and small; base has {BASE_STEPS}.")
    ] = 1500,
    others: Annotated[str, typer.Option(help="Baselines besides tformer.")] = ",".join(COMPARABLE),
    searches: Annotated[str, typer.Option(help="Searches.")] = ",".join(SEARCHES),
    conditions: Conditions = ALL_CONDITIONS,
    rounds: Rounds = 3,
    threads: Threads = 2,
    sentences: Annotated[
        int | None,
        typer.Option(min=1, help="Sentences of the file.", show_default="the whole test text"),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="Sentences that are translated one at a time.")
    ] = 100,
    textbook_sample: Annotated[
        int, typer.Option(min=1, help="Sentences of the textbook, which is slow.")
    ] = 32,
    vocab_size: VocabSize = 10_000,
    as_json: AsJson = False,
) -> None:
    """Compare the decoding speed of tformer on a CPU with four baselines.

    transformers' Marian translates by its own `generate`, the textbook by torch's nn.Transformer
    over the whole prefix for every token, CTranslate2 with two workers of one thread each, and
    tformer once more with CTranslate2 as its engine. All have the weights of one model, which is
    trained far enough to end its sentences by itself.

    Each is a process of its own, in the condition `default` with the settings of nobody, in `tuned`
    with the environment and the allocator of tformer's command line; tformer as a Python program
    uses it sets its allocator in either. Batch sizes and numbers of
    processes are tried beforehand, and the fastest are kept. They take turns, in every second round
    backwards; speeds and ratios are medians over the rounds, with their range. Encoding and
    decoding of text count, loading does not. `file` is the test text, `one` a sample of it, one
    sentence at a time; the textbook has a smaller sample of either. Memory is that of all processes
    of a baseline in a turn of its own.

    Example: python scripts/bench/decode.py --sizes tiny --json
    """
    names = ("ours", *names_in("--others", others, OTHERS, "baseline"))
    chosen = names_in("--searches", searches, SEARCHES, "search")
    columns = names_in("--conditions", conditions, CONDITIONS, "condition")
    torch.set_num_threads(threads)
    results = {}
    for size in names_in("--sizes", sizes, SIZES, "size"):
        num_steps = BASE_STEPS if size == "base" else steps
        run = trained(size, decoding_config(data, size, vocab_size, num_steps))
        for condition in columns:
            results[f"{size} {condition}"] = compare(
                run,
                names,
                chosen,
                Samples(sentences, sample, textbook_sample),
                condition=condition,
                threads=threads,
                rounds=rounds,
            )
    tables = lambda: "\n\n".join(table(*item) for item in results.items())  # noqa: E731
    show(results, as_json, tables, rounds_on(rounds, threads))


if __name__ == "__main__":
    run(app)
