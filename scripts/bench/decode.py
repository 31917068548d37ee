#!/usr/bin/env python
"""Compare the decoding speed of tformer on a CPU with four baselines, in turns on one machine.

They are transformers' `generate`, a textbook loop without KV cache, and CTranslate2 in float32 and
int8. tformer also takes CTranslate2 as its engine. All have the same weights and sentences.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from cli import (
    ALL_CONDITIONS,
    MULTI30K,
    ROOT,
    AsJson,
    Conditions,
    Rounds,
    Threads,
    VocabSize,
    names_in,
    rounds_on,
    show,
)
from decode_baselines import BASELINES, Setting, Task
from decode_models import (
    SIZES,
    decoding_config,
    pairs_to_translate,
    refuse_another_design,
    trained,
)
from harness import (
    CONDITIONS,
    Condition,
    Worker,
    aligned,
    log,
    median_and_range,
    play_rounds,
    ratios,
    spread,
    watched,
)

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.config import Config
from tformer_cli.device import has_vnni
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers

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
    "speeds": "sentences/s",
    "ratios": "times as fast tformer is as",
    "backend_ratios": "times as fast as its engine",
}
ROWS = {
    "bleu": ("BLEU", ".2f"),
    "tokens": ("output tokens", ","),
    "sentences": ("sentences", ","),
    "memory_mib": ("peak MiB", ",.0f"),
    "settings": ("fastest setting", ""),
}


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    threads: int  # of each baseline, all its workers together
    rounds: int  # number of turns of each
    alone: int  # sentences that are translated one at a time
    textbook: int  # sentences of the textbook, which would take hours for all
    sentences: int | None = None  # of the file; None for the whole test text
    others: Sequence[str] = COMPARABLE
    searches: Sequence[str] = tuple(SEARCHES)
    modes: Sequence[str] = tuple(MODES)
    condition: Condition = "tuned"  # of all baselines


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


def compare(folder: RunDirectory, options: Options) -> dict[str, Any]:
    """Let all baselines translate the test text of a run; return results by search and mode."""
    trained = load_trained_model(folder)
    config, tokenizers = trained.config, trained.tokenizers
    refuse_another_design(config.model)
    pairs = pairs_to_translate(config)
    if options.sentences is not None:
        pairs = spread(pairs, options.sentences)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as exports:
        for quantization in ("float32", "int8"):
            CTranslate2Format(quantization).save(trained, Path(exports) / quantization)
        for search, mode in itertools.product(options.searches, options.modes):
            task = Task(
                str(folder.path),
                exports,
                SEARCHES[search],
                MODES[mode],
                options.threads,
                condition=options.condition,
            )
            log(f"{folder.path.name} {search} {mode} {task.condition}")
            cell = compare_one(task, pairs, config, tokenizers, options)
            results.setdefault(search, {})[mode] = cell
    return results


def compare_one(
    task: Task,
    pairs: Sequence[tuple[str, str]],
    config: Config,
    tokenizers: Tokenizers,
    options: Options,
) -> dict[str, Any]:
    """Let all baselines translate by one search in one mode."""
    sample = spread(pairs, options.alone) if task.alone else pairs
    texts = dict.fromkeys(("ours", *options.others), sample)
    if "textbook" in texts:
        texts["textbook"] = spread(sample, options.textbook)
    sources = {name: [source for source, _ in text] for name, text in texts.items()}
    metric = build_metric("bleu", config.evaluation, config.data.target_language)
    keys = ("bleu", "tokens", "sentences", "memory_mib", "settings", "tried")
    results: dict[str, dict[str, Any]] = {key: {} for key in keys}
    with contextlib.ExitStack() as stack:
        workers: dict[str, DecodeWorker] = {}
        for name, lines in sources.items():
            best, *others = BASELINES[name].settings(task)
            if others:
                tried = speeds_by_setting(name, task, spread(lines, TRIAL_SENTENCES))
                results["tried"][name] = {str(setting): speed for setting, speed in tried.items()}
                best = max(tried, key=lambda setting: tried[setting])
            results["settings"][name] = str(best)
            workers[name] = stack.enter_context(DecodeWorker(name, task))
            workers[name].use(best, lines)
        for name, worker in workers.items():
            translations, memory = worker.watched_turn(sources[name])
            references = [reference for _, reference in texts[name]]
            encoded = tokenizers.target.encode_batch(translations)
            results["bleu"][name] = metric.score(translations, references).score
            results["tokens"][name] = sum(map(len, encoded))
            results["sentences"][name] = len(translations)
            results["memory_mib"][name] = memory / 2**20
        speeds = play_rounds(
            workers, options.rounds, lambda name: workers[name].speed(sources[name]), "sentences/s"
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


def table(size: str, results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a table of one size with a column for each search and mode."""
    cells = [cell for modes in results.values() for cell in modes.values()]
    rows = [[size, *(f"{search} {mode}" for search, modes in results.items() for mode in modes)]]
    for key, title in MEDIANS.items():
        rows.append([title, *("" for _ in cells)])
        for name in cells[0]["rounds"][key]:
            medians = (median_and_range(cell["rounds"][key][name]) for cell in cells)
            rows.append([f"  {TITLES[name]}", *medians])
    for key, (title, form) in ROWS.items():
        rows.append([title, *("" for _ in cells)])
        for name in cells[0]["sentences"]:
            rows.append([f"  {TITLES[name]}", *(format(cell[key][name], form) for cell in cells)])
    return aligned(rows)


app = new_app(add_completion=False)


@app.command()
def decode(
    folder: Annotated[
        Path,
        typer.Option(
            "--folder", "--data", metavar="DIR", help="Multi30k.", show_default="data/multi30k"
        ),
    ] = MULTI30K,
    sizes: Annotated[
        str,
        typer.Option(help="tiny: 4+4 layers of width 128; small: 3+3 of 256; base: 6+6 of 512."),
    ] = ",".join(SIZES),
    run_folder: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="A run of Marian's design, in place of --sizes."),
    ] = None,
    models: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder of the models.", show_default="runs/decode"),
    ] = ROOT / "runs" / "decode",
    steps: Annotated[int, typer.Option(min=1, help="Steps of training tiny and small.")] = 1500,
    base_steps: Annotated[int, typer.Option(min=1, help="Steps of training base.")] = 150,
    others: Annotated[str, typer.Option(help="Baselines besides tformer.")] = ",".join(COMPARABLE),
    searches: Annotated[str, typer.Option(help="Searches.")] = ",".join(SEARCHES),
    modes: Annotated[
        str, typer.Option(help="file: the test text; one: a sentence at a time.")
    ] = ",".join(MODES),
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
    with the environment and the allocator of tformer's command line. Batch sizes and numbers of
    processes are tried beforehand, and the fastest are kept. They take turns, in every second round
    backwards; speeds and ratios are medians over the rounds, with their range. Encoding and
    decoding of text count, loading does not. `file` is the test text, `one` a sample of it, one
    sentence at a time; the textbook has a smaller sample of either. Memory is that of all processes
    of a baseline in a turn of its own.

    Example: python scripts/bench/decode.py --sizes tiny --json
    """
    options = Options(
        threads,
        rounds,
        sample,
        textbook_sample,
        sentences,
        names_in("--others", others, OTHERS, "baseline"),
        names_in("--searches", searches, SEARCHES, "search"),
        names_in("--modes", modes, MODES, "mode"),
    )
    columns = names_in("--conditions", conditions, CONDITIONS, "condition")
    torch.set_num_threads(threads)
    configs = {}
    if run_folder is None:
        for size in names_in("--sizes", sizes, SIZES, "size"):
            num_steps = base_steps if size == "base" else steps
            configs[size] = decoding_config(folder, size, vocab_size, num_steps)
    runs = trained(configs, models) if run_folder is None else [(run_folder.name, run_folder)]
    results = {
        f"{name} {condition}": compare(RunDirectory(path), replace(options, condition=condition))
        for (name, path), condition in itertools.product(runs, columns)
    }
    tables = lambda: "\n\n".join(table(*item) for item in results.items())  # noqa: E731
    show(results, as_json, tables, rounds_on(rounds, threads))


if __name__ == "__main__":
    run(app)
