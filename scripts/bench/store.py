#!/usr/bin/env python
"""Build a token store of synthetic text, and measure time and memory."""

import itertools
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from cli import AsJson, show
from harness import aligned, proc_bytes, run_in_process

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.data import DataConfig, FilterConfig, ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.corpus.batch import DataPosition, epoch_plans, training_micro_batches
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.corpus.store import TokenStore
from tformer_cli.corpus.store_builder import evaluation_store, training_store
from tformer_cli.text.tokenizer import build_tokenizers, load_tokenizers

NUM_WORDS = 20_000
BLOCK_LINES = 10_000
# Lines of which the vocabulary is learned, and that warm up a process before it is measured.
SAMPLE_LINES = 20_000
WARM_UP_LINES = 2_000


def write_text(folder: Path, num_pairs: int) -> None:
    """Write a parallel text of Zipf-distributed words, 3 to 40 per line, and a short one."""
    random = np.random.default_rng(1)
    syllables = np.array([c + v for c in "bdfgklmnprstvz" for v in "aeiou"])
    words = np.array(
        ["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(NUM_WORDS)]
    )
    frequencies = 1 / np.arange(1, NUM_WORDS + 1)
    frequencies /= frequencies.sum()

    def lines() -> Iterator[str]:
        while True:
            lengths = random.integers(3, 41, BLOCK_LINES)
            chosen = words[random.choice(NUM_WORDS, int(lengths.sum()), p=frequencies)]
            yield from map(" ".join, np.split(chosen, np.cumsum(lengths)[:-1]))

    for name, count in (("train", num_pairs), ("short", WARM_UP_LINES)):
        files = folder / f"{name}.src", folder / f"{name}.tgt"
        with files[0].open("w") as source, files[1].open("w") as target:
            for line in itertools.islice(lines(), count):
                source.write(f"{line}\n")
                # Nearly as long as the source, as a translation is.
                target.write(f"{line[len(line) // 10 :][::-1].strip()}\n")


def data_of(folder: Path) -> DataConfig:
    """Return the config of the text of `write_text`."""
    files = {
        name: {"source": folder / f"{name}.src", "target": folder / f"{name}.tgt"}
        for name in ("train", "short")
    }
    return DataConfig(
        train=(TrainingText(**files["train"]),),
        valid=ParallelText(**files["short"]),
        filters=FilterConfig(max_ratio=4.0, drop_duplicates=True),
    )


def measure_build(path: str) -> dict[str, float]:
    """Build the store; return time and memory."""
    folder = Path(path)
    data, tokenizers = data_of(folder), load_tokenizers(folder / "tokenizer")
    evaluation_store(data.valid, tokenizers)
    before, begin = proc_bytes()["RssAnon"], time.perf_counter()
    store, report = training_store(data, tokenizers, folder / "stores")
    seconds = time.perf_counter() - begin
    return {
        "build_seconds": seconds,
        "pairs_per_second": report.seen / seconds,
        "pairs_kept": len(store),
        "build_bytes_a_pair": (proc_bytes()["RssAnon"] - before) / len(store),
    }


def measure_start(path: str, batch_tokens: int, num_batches: int) -> dict[str, float]:
    """Open the store and take the first batches of an epoch, as a training does."""
    folder = Path(path)
    data, tokenizers = data_of(folder), load_tokenizers(folder / "tokenizer")

    def batches(store: TokenStore) -> Iterator[object]:
        plans = epoch_plans(store, batch_tokens=batch_tokens, seed=1)
        return training_micro_batches(store, plans, accumulate=1, data_position=DataPosition())

    short = batches(evaluation_store(data.valid, tokenizers))
    for _ in range(num_batches):
        next(short)
    before, begin = proc_bytes()["RssAnon"], time.perf_counter()
    store, _ = training_store(data, tokenizers, folder / "stores")
    store.fingerprint()
    opened = time.perf_counter()
    groups = batches(store)
    next(groups)
    first = time.perf_counter()
    for _ in range(num_batches):
        next(groups)
    return {
        "second_start_seconds": opened - begin,
        "first_batch_seconds": first - begin,
        "bytes_a_pair": (proc_bytes()["RssAnon"] - before) / len(store),
    }


def measure(num_pairs: int, *, batch_tokens: int, num_batches: int) -> dict[str, float | str]:
    """Write a text, build its store, and start again."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_text(folder, num_pairs)
        text = data_of(folder).train[0]

        def sample() -> Iterator[tuple[str, str]]:
            return itertools.islice(read_pairs(text.source, text.target), SAMPLE_LINES)

        build_tokenizers(SubwordConfig(vocab_size=8000), sample, 1).save(folder / "tokenizer")
        size = {"batch_tokens": batch_tokens, "num_batches": num_batches}
        return {
            "machine": platform.machine(),
            "cores": os.cpu_count() or 1,
            "pairs": num_pairs,
            **run_in_process("store.measure_build", condition="default", path=path),
            **run_in_process("store.measure_start", path=path, **size),
        }


def table(results: dict[str, float | str]) -> str:
    """Return the results as lines."""
    rows = (
        [name.replace("_", " "), f"{value:,.2f}" if isinstance(value, float) else str(value)]
        for name, value in results.items()
    )
    return aligned(rows)


app = new_app(add_completion=False)


@app.command()
def store(
    pairs: Annotated[int, typer.Option(min=1, help="Sentence pairs of the text.")] = 2_000_000,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Batch size in tokens.")] = 4096,
    batches: Annotated[int, typer.Option(min=0, help="Number of batches after the first.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Build a token store of synthetic text, and measure time and memory.

    Text and store lie in a temporary folder. Building and starting again are measured in a process
    each, so that neither profits from the memory of the other.

    Example: python scripts/bench/store.py --pairs 2000000
    """
    results = measure(pairs, batch_tokens=batch_tokens, num_batches=batches)
    show(results, as_json, lambda: table(results))


if __name__ == "__main__":
    run(app)
