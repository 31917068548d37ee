#!/usr/bin/env python
"""Compare how fast tformer translates on a CPU with four others, in one run on one machine.

They are transformers' `generate`, a textbook loop without cache, and CTranslate2 with float32 and
with eight bits. tformer also takes CTranslate2 as its engine, and should then be as fast as that
is by itself. All have the same weights and the same sentences.
"""

import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from choices import chosen
from conditions import CONDITIONS, Condition
from decoders.contestants import CONTESTANTS, Setting, Task
from decoders.figures import TITLES, cache_table, summary, table
from decoders.models import (
    SIZES,
    decoding_config,
    described,
    pairs_to_translate,
    refuse_another_design,
    trained,
    untrained,
    write_endless,
)
from decoders.worker import Worker, speeds_by_setting
from train import DEFAULT_FOLDER, in_turn
from trainers.contestants import CPU

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.config import Config
from tformer_cli.device import hardware_name, has_vnni
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers

DEFAULT_MODELS = Path(__file__).resolve().parents[2] / "runs" / "decode"
# Beam size of each search; whether sentences come one at a time, by name of the mode.
SEARCHES = {"greedy": 1, "beam5": 5}
MODES = {"file": False, "one": True}
OTHERS = tuple(name for name in TITLES if name != "ours")
# Without VNNI tformer refuses int8.
COMPARABLE = tuple(name for name in OTHERS if name != "ours_int8" or has_vnni())
# Sentences that the settings of a contestant are tried on: two of the largest batches, for two
# workers.
TRIAL_SENTENCES = 512
# Translations of these lengths are written with a cache and without, of so many sentences.
CACHE_LENGTHS = (5, 10, 20, 40, 80)
CACHE_SENTENCES = 16
CACHE_SETTINGS = {"ours": Setting(), "uncached": Setting(CACHE_SENTENCES)}


@dataclass(frozen=True, slots=True)
class Measuring:
    """How much is measured.

    Attributes:
        threads: of each contestant, all its workers together.
        rounds: turns of each.
        alone: sentences that are translated one at a time.
        textbook: sentences of the textbook, which would take hours for all.
        sentences: of the file; None for the whole test text.
        others: who takes part besides tformer.
        searches: keys of SEARCHES.
        modes: keys of MODES.
        condition: environment and allocator of every contestant.
    """

    threads: int
    rounds: int
    alone: int
    textbook: int
    sentences: int | None = None
    others: Sequence[str] = COMPARABLE
    searches: Sequence[str] = tuple(SEARCHES)
    modes: Sequence[str] = tuple(MODES)
    condition: Condition = "tuned"


def compare(folder: RunDirectory, measuring: Measuring) -> dict[str, Any]:
    """Let all contestants translate the test text of a run.

    Args:
        folder: of the run.
        measuring: how much.

    Returns:
        The figures by search and mode, as plain data.

    Raises:
        TformerError: the run cannot be used, or a contestant has failed.
    """
    trained = load_trained_model(folder)
    config, tokenizers = trained.config, trained.tokenizers
    refuse_another_design(config.model)
    pairs = pairs_to_translate(config)
    if measuring.sentences is not None:
        pairs = spread(pairs, measuring.sentences)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as exports:
        for quantization in ("float32", "int8"):
            CTranslate2Format(quantization).save(trained, Path(exports) / quantization)
        for search, mode in itertools.product(measuring.searches, measuring.modes):
            task = Task(
                str(folder.path),
                exports,
                SEARCHES[search],
                MODES[mode],
                measuring.threads,
                condition=measuring.condition,
            )
            print(f"{folder.path.name} {search} {mode} {task.condition}", file=sys.stderr)
            cell = compare_one(task, pairs, config, tokenizers, measuring)
            results.setdefault(search, {})[mode] = cell
    return results


def compare_one(
    task: Task,
    pairs: Sequence[tuple[str, str]],
    config: Config,
    tokenizers: Tokenizers,
    measuring: Measuring,
) -> dict[str, Any]:
    """Let all contestants translate by one search in one mode.

    Args:
        task: the search and the mode.
        pairs: what to translate, and the references.
        config: of the run.
        tokenizers: of the run.
        measuring: how much.

    Returns:
        The figures, as plain data.

    Raises:
        TrainingError: a contestant has failed.
    """
    chosen = spread(pairs, measuring.alone) if task.alone else pairs
    texts = dict.fromkeys(("ours", *measuring.others), chosen)
    if "textbook" in texts:
        texts["textbook"] = spread(chosen, measuring.textbook)
    sources = {name: [source for source, _ in text] for name, text in texts.items()}
    metric = build_metric("bleu", config.evaluation, config.data.target_language)
    figures: dict[str, dict[str, Any]] = {
        kind: {} for kind in ("bleu", "tokens", "sentences", "memory_mib", "settings", "tried")
    }
    best = {}
    for name, lines in sources.items():
        best[name], *others = CONTESTANTS[name].settings(task)
        if others:
            tried = speeds_by_setting(name, task, spread(lines, TRIAL_SENTENCES))
            figures["tried"][name] = {str(setting): speed for setting, speed in tried.items()}
            best[name] = max(tried, key=lambda setting: tried[setting])
        figures["settings"][name] = str(best[name])
    with _workers(best, sources, task) as workers:
        for name, worker in workers.items():
            turn, memory = worker.watched_turn(sources[name])
            references = [reference for _, reference in texts[name]]
            figures["bleu"][name] = metric.score(turn.texts, references).score
            encoded = tokenizers.target.encode_batch(turn.texts)
            figures["tokens"][name] = sum(map(len, encoded))
            figures["sentences"][name] = len(turn.texts)
            figures["memory_mib"][name] = memory / 2**20
        rounds = _played(workers, sources, measuring.rounds)
        figures["surroundings"] = {name: x.surroundings() for name, x in workers.items()}
    return summary(rounds) | figures


def compare_cache(config: Config, tokenizers: Tokenizers, measuring: Measuring) -> dict[str, Any]:
    """Write translations of given lengths with a cache and without it.

    Speed does not depend on what is written, so the weights are first ones that never end a
    translation by themselves.

    Returns:
        By length the sentences a second of both, and their ratio.

    Raises:
        TrainingError: one of the two has failed.
    """
    results = {}
    lines = [source for source, _ in pairs_to_translate(config)]
    with tempfile.TemporaryDirectory() as folder:
        endless = RunDirectory(Path(folder) / "endless")
        write_endless(config, tokenizers, endless)
        for length in CACHE_LENGTHS:
            task = Task(str(endless.path), "", 1, False, measuring.threads, max_length=length)
            sources = dict.fromkeys(("ours", "uncached"), spread(lines, CACHE_SENTENCES))
            with _workers(CACHE_SETTINGS, sources, task) as workers:
                played = summary(_played(workers, sources, measuring.rounds))
            results[str(length)] = {
                "cached": played["ours"],
                "uncached": played["uncached"],
                "ratio": played["ratios"]["uncached"],
            }
    return results


@contextlib.contextmanager
def _workers(
    settings: dict[str, Setting], sources: dict[str, list[str]], task: Task
) -> Iterator[dict[str, Worker]]:
    """Yield contestants that are ready and warm, and end them."""
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, task)) for name in settings}
        for name, worker in workers.items():
            worker.use(settings[name], sources[name])
        yield workers


def _played(
    workers: dict[str, Worker], sources: dict[str, list[str]], rounds: int
) -> list[dict[str, float]]:
    """Return the sentences a second of each contestant in each round."""
    played = []
    for number in range(1, rounds + 1):
        speeds = {
            name: workers[name].turn(sources[name]).sentences_per_second
            for name in in_turn(workers, number)
        }
        told = ", ".join(f"{name} {speed:,.1f}" for name, speed in speeds.items())
        print(f"round {number}/{rounds}: {told} sentences/s", file=sys.stderr, flush=True)
        played.append({name: speeds[name] for name in workers})
    return played


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """Return so many items at equal distances, or all where there are fewer."""
    count = min(count, len(items))
    return [items[place * len(items) // count] for place in range(count)]


app = new_app(add_completion=False)


@app.command()
def decode(
    folder: Annotated[
        Path,
        typer.Option(
            "--folder", "--data", metavar="DIR", help="Multi30k.", show_default="data/multi30k"
        ),
    ] = DEFAULT_FOLDER,
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
        typer.Option(
            metavar="DIR",
            help="Where the models are trained and kept.",
            show_default="runs/decode",
        ),
    ] = DEFAULT_MODELS,
    steps: Annotated[int, typer.Option(min=1, help="Of training tiny and small.")] = 1500,
    base_steps: Annotated[int, typer.Option(min=1, help="Of training base.")] = 150,
    others: Annotated[str, typer.Option(help="Who takes part besides tformer.")] = ",".join(
        COMPARABLE
    ),
    searches: Annotated[str, typer.Option(help="How to translate.")] = ",".join(SEARCHES),
    modes: Annotated[
        str, typer.Option(help="file: the test text; one: a sentence at a time.")
    ] = ",".join(MODES),
    conditions: Annotated[
        str,
        typer.Option(help="default: nobody has settings; tuned: all have those of tformer."),
    ] = ",".join(CONDITIONS),
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Of each, all workers together.")] = 2,
    sentences: Annotated[
        int | None,
        typer.Option(min=1, help="Of the file.", show_default="the whole test text"),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="Sentences that are translated one at a time.")
    ] = 100,
    textbook_sample: Annotated[
        int, typer.Option(min=1, help="Sentences of the textbook, which is slow.")
    ] = 32,
    vocab_size: Annotated[
        int, typer.Option(min=32, help="Of the vocabulary that both languages share.")
    ] = 10_000,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache",
            help="Compare nothing but tformer with and without its cache, by length; trains none.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare how fast tformer translates on a CPU with four others.

    transformers' Marian translates by its own `generate`, the textbook by torch's nn.Transformer
    over the whole prefix for every token, CTranslate2 with two workers of one thread each, and
    tformer once more with CTranslate2 as its engine. All have the weights of one model, which is
    trained far enough to end its sentences by itself.

    Each is a process of its own. In the condition `default` none has settings for its environment
    or its allocator, in `tuned` all have those of tformer's command line. Beforehand batch sizes
    and numbers of processes are tried and the fastest is kept. They take turns, in every second
    round backwards; speeds are medians over the rounds with their range, and a ratio is the median
    of the rounds' ratios. Text becomes ids and ids become text within the time; loading does not
    count. `file` is the test text, `one` a sample of it, a sentence at a time; the textbook has a
    smaller sample of either. Memory is that of all processes of a contestant in a turn of its own.

    Example: python scripts/bench/decode.py --sizes tiny --json
    """
    taking_part = chosen("--others", others, OTHERS, "contestant")
    columns = chosen("--conditions", conditions, CONDITIONS, "condition")
    measuring = Measuring(
        threads,
        rounds,
        sample,
        textbook_sample,
        sentences,
        taking_part,
        chosen("--searches", searches, SEARCHES, "search"),
        chosen("--modes", modes, MODES, "mode"),
    )
    torch.set_num_threads(threads)
    configs = {}
    if run_folder is None:
        for size in chosen("--sizes", sizes, SIZES, "size"):
            num_steps = base_steps if size == "base" else steps
            configs[size] = decoding_config(folder, size, vocab_size, num_steps)
    if cache:
        subjects = untrained(configs) if run_folder is None else [described(run_folder)]
        results = {
            name: compare_cache(config, tokenizers, measuring)
            for name, config, tokenizers in subjects
        }
    else:
        runs = trained(configs, models) if run_folder is None else [(run_folder.name, run_folder)]
        results = {
            f"{name} {condition}": compare(
                RunDirectory(path), replace(measuring, condition=condition)
            )
            for (name, path), condition in itertools.product(runs, columns)
        }
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        tables = (table(name, figures) for name, figures in results.items())
        typer.echo(cache_table(results) if cache else "\n\n".join(tables))
        typer.echo(
            f"{rounds} rounds, {threads} threads, torch {torch.__version__}, {hardware_name(CPU)}"
        )


if __name__ == "__main__":
    run(app)
