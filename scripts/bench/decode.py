#!/usr/bin/env python
"""Compare the decoding speed of tformer on a CPU with four baselines, in turns on one machine.

They are transformers' `generate`, a textbook loop without KV cache, and CTranslate2 in float32 and
int8. tformer also takes CTranslate2 as its engine. All have the same weights and sentences.
"""

import contextlib
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
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
    Rounds,
    Threads,
    VocabSize,
    hardware,
    names_in,
    show,
)
from decode_baselines import BASELINES, Setting, Task
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
from train import NETWORK, TRAINING, benchmark_config, multi30k_text, network
from train import SIZES as TRAINING_SIZES

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import dump_config
from tformer_cli.config.schema.config import BleuConfig, Config, EvaluationConfig
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.config.schema.training import CosineSchedule, MuonConfig
from tformer_cli.corpus.pipeline import training_pairs
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.device import has_vnni
from tformer_cli.errors import UsageError
from tformer_cli.evaluation.metrics import build_metric
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.model.build import build_model
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.checkpoint import save_average
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers, build_tokenizers
from tformer_cli.text.vocabulary import EOS_ID
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
OTHERS = tuple(name for name in TITLES if name != "ours")
# Without VNNI tformer refuses int8.
COMPARABLE = tuple(name for name in OTHERS if name != "ours_int8" or has_vnni())
# Who translates by the engine of another.
BACKENDS = {"ctranslate2_backend": "ctranslate2_float32"}
SEARCHES = {"greedy": 1, "beam5": 5}  # beam size
MODES = {"file": False, "one": True}  # whether sentences come one at a time
TEST_SET = "test_2016_flickr"
SIZES = TRAINING_SIZES | {"base": network(512, 6, 8, 2048)}
# A deep and wide post-norm network diverges at the learning rate of the others.
LEARNING_RATES = {"tiny": 3e-3, "small": 3e-3, "base": 1e-3}
# What is done for the first time takes longer, shapes of batches above all.
WARM_UP_LINES = 64
# Sentences on which settings are tried: two of the largest batches, for two workers.
TRIAL_SENTENCES = 512
CACHE_LENGTHS = (5, 10, 20, 40, 80)
CACHE_SENTENCES = 16
CACHE_SETTINGS = {"ours": Setting(), "uncached": Setting(CACHE_SENTENCES)}


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured.

    Attributes:
        threads: of each baseline, all its workers together.
        rounds: number of turns of each.
        alone: sentences that are translated one at a time.
        textbook: sentences of the textbook, which would take hours for all.
        sentences: of the file; None for the whole test text.
        others: keys of TITLES.
        searches: keys of SEARCHES.
        modes: keys of MODES.
        condition: environment and allocator of all baselines.
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


class DecodeWorker(Worker):
    """A baseline that translates in a process of its own."""

    def __init__(self, name: str, task: Task) -> None:
        call, words = "decode_baselines.serve_translation", json.dumps(asdict(task))
        super().__init__(name, call, name, words, condition=task.condition)

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
    """Let all baselines translate the test text of a run; return results by search and mode.

    Raises:
        TformerError: the run cannot be used, or a baseline has failed.
    """
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
    """Let all baselines translate by one search in one mode.

    Raises:
        TrainingError: a baseline has failed.
    """
    sample = spread(pairs, options.alone) if task.alone else pairs
    texts = dict.fromkeys(("ours", *options.others), sample)
    if "textbook" in texts:
        texts["textbook"] = spread(sample, options.textbook)
    sources = {name: [source for source, _ in text] for name, text in texts.items()}
    metric = build_metric("bleu", config.evaluation, config.data.target_language)
    keys = ("bleu", "tokens", "sentences", "memory_mib", "settings", "tried")
    results: dict[str, dict[str, Any]] = {key: {} for key in keys}
    best = {}
    for name, lines in sources.items():
        best[name], *others = BASELINES[name].settings(task)
        if others:
            tried = speeds_by_setting(name, task, spread(lines, TRIAL_SENTENCES))
            results["tried"][name] = {str(setting): speed for setting, speed in tried.items()}
            best[name] = max(tried, key=lambda setting: tried[setting])
        results["settings"][name] = str(best[name])
    with _workers(best, sources, task) as workers:
        for name, worker in workers.items():
            translations, memory = worker.watched_turn(sources[name])
            references = [reference for _, reference in texts[name]]
            encoded = tokenizers.target.encode_batch(translations)
            results["bleu"][name] = metric.score(translations, references).score
            results["tokens"][name] = sum(map(len, encoded))
            results["sentences"][name] = len(translations)
            results["memory_mib"][name] = memory / 2**20
        rounds = _play(workers, sources, options.rounds)
        results["process"] = {name: worker.ask(settings=True) for name, worker in workers.items()}
    return summary(rounds) | results


def compare_cache(config: Config, tokenizers: Tokenizers, options: Options) -> dict[str, Any]:
    """Write translations of given lengths with the KV cache and without it; results by length.

    Speed does not depend on what is written, so the model has its initial weights.
    """
    results = {}
    lines = spread([source for source, _ in pairs_to_translate(config)], CACHE_SENTENCES)
    with tempfile.TemporaryDirectory() as folder:
        endless = RunDirectory(Path(folder) / "endless")
        write_endless(config, tokenizers, endless)
        for length in CACHE_LENGTHS:
            task = Task(str(endless.path), "", 1, False, options.threads, max_length=length)
            sources = dict.fromkeys(CACHE_SETTINGS, lines)
            with _workers(CACHE_SETTINGS, sources, task) as workers:
                played = summary(_play(workers, sources, options.rounds))
            results[str(length)] = {
                "cached": played["ours"],
                "uncached": played["uncached"],
                "ratio": played["ratios"]["uncached"],
            }
    return results


@contextlib.contextmanager
def _workers(
    settings: dict[str, Setting], sources: dict[str, list[str]], task: Task
) -> Iterator[dict[str, DecodeWorker]]:
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(DecodeWorker(name, task)) for name in settings}
        for name, worker in workers.items():
            worker.use(settings[name], sources[name])
        yield workers


def _play(
    workers: dict[str, DecodeWorker], sources: dict[str, list[str]], rounds: int
) -> list[dict[str, float]]:
    return play_rounds(
        workers, rounds, lambda name: workers[name].speed(sources[name]), "sentences/s"
    )


# ---------------------------------------------------------------------------------------- models


def decoding_config(folder: Path, size: str, vocab_size: int, steps: int) -> Config:
    """Return the config of a model to translate with.

    Raises:
        UsageError: the folder lacks a file of the corpus.
    """
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


def trained(configs: dict[str, Config], models: Path) -> Iterator[tuple[str, Path]]:
    """Train what is not trained yet; yield the name and the folder of each run."""
    for size, config in configs.items():
        folder = models / f"{size}-{config.training.max_steps}"
        train(config, RunDirectory(folder), device=CPU)
        yield size, folder


def write_endless(config: Config, tokenizers: Tokenizers, folder: RunDirectory) -> None:
    """Write a run whose model has its initial weights and never writes EOS."""
    model = build_model(
        config.model,
        source_size=tokenizers.source.size,
        target_size=tokenizers.target.size,
        seed=config.seed,
    )
    with torch.no_grad():
        # Its logit is 0, and one of all the others is positive.
        model.output.weight[EOS_ID] = 0
    tokenizers.save(folder.tokenizer)
    save_average(folder.checkpoint(0), model, TrainingProgress.initial("", {}))
    folder.point("last", folder.checkpoint(0))
    write_text(folder.config_file, dump_config(config))


def refuse_another_design(model: EncoderDecoderConfig) -> None:
    """Make sure that all baselines can be a network.

    Raises:
        UsageError: it is not of Marian's design.
    """
    design, marians = (
        (config.norm_position, config.norm, config.positions.kind, config.tie_embeddings)
        for config in (model, NETWORK)
    )
    if design != marians:
        raise UsageError(
            "--run",
            f"its norms, positions and ties must be Marian's ({', '.join(marians)})",
            got=", ".join(design),
            remedy="name another run, or use --sizes",
        )


def pairs_to_translate(config: Config) -> list[tuple[str, str]]:
    """Return the pairs of the first test set, or of the validation text where there is none."""
    text = next(iter(config.data.test.values()), config.data.valid)
    return list(read_pairs(text.source, text.target))


# --------------------------------------------------------------------------------------- results


def summary(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return medians over the rounds of sentences per second.

    `ratios`: how many times as fast as each other baseline ours is. `backend_ratios`: how many
    times as fast as its engine by itself a backend is. `rounds`: the same of every round.
    """
    names = list(rounds[0])
    by_round = {
        "speeds": {name: [speeds[name] for speeds in rounds] for name in names},
        "ratios": {name: ratios(rounds, "ours", name) for name in names if name != "ours"},
        "backend_ratios": {
            name: ratios(rounds, name, engine)
            for name, engine in BACKENDS.items()
            if name in names and engine in names
        },
    }
    medians = {
        key: {name: median(numbers) for name, numbers in values.items()}
        for key, values in by_round.items()
    }
    return medians.pop("speeds") | medians | {"rounds": by_round}


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


def cache_table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return how many times as fast the KV cache makes each size, a column a length."""
    lengths = list(next(iter(results.values())))
    rows = [["tokens", *lengths]]
    for size, by_length in results.items():
        rows.append([size, *(f"{by_length[length]['ratio']:.2f}" for length in lengths)])
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
    cache: Annotated[
        bool,
        typer.Option(
            "--cache",
            help="Compare nothing but tformer with and without KV cache, by length; trains none.",
        ),
    ] = False,
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
    note = f"{rounds} rounds, {hardware(threads)}"
    if cache:
        if run_folder is None:
            first = next(iter(configs.values()))
            tokenizers = build_tokenizers(
                first.tokenizer, lambda: training_pairs(first.data), first.seed
            )
        else:
            known = load_trained_model(RunDirectory(run_folder))
            configs, tokenizers = {run_folder.name: known.config}, known.tokenizers
        by_length = {x: compare_cache(config, tokenizers, options) for x, config in configs.items()}
        show(by_length, as_json, lambda: cache_table(by_length), note)
        return
    runs = trained(configs, models) if run_folder is None else [(run_folder.name, run_folder)]
    results = {
        f"{name} {condition}": compare(RunDirectory(path), replace(options, condition=condition))
        for (name, path), condition in itertools.product(runs, columns)
    }
    show(results, as_json, lambda: "\n\n".join(table(*item) for item in results.items()), note)


if __name__ == "__main__":
    run(app)
