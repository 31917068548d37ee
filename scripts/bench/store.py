"""Build a token store of made-up text, and measure what it takes.

    python scripts/bench/store.py --pairs 2000000

The text and the store lie in a temporary folder that goes at the end. Building and starting again
are measured in a process each, so that neither profits from what the other holds in memory.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from tformer_cli.config.schema.data import DataConfig, FilterConfig, ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import SubwordConfig
from tformer_cli.corpus.bucketing import DataPosition
from tformer_cli.corpus.pipeline import (
    epoch_plans,
    evaluation_store,
    training_micro_batches,
    training_store,
)
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.corpus.store import TokenStore
from tformer_cli.process import tune_allocator
from tformer_cli.text.tokenizer import build_tokenizers, load_tokenizers

NUM_WORDS = 20_000
BLOCK_LINES = 10_000
# Lines that the vocabulary is learnt from, and that warm a process up before it is measured.
SAMPLE_LINES = 20_000
WARM_UP_LINES = 2_000


def write_text(folder: Path, num_pairs: int) -> None:
    """Write a parallel text of Zipf-distributed words, 3 to 40 a line, and a short one."""
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
    """Return the config of the text that `write_text` wrote."""
    files = {
        name: {"source": folder / f"{name}.src", "target": folder / f"{name}.tgt"}
        for name in ("train", "short")
    }
    return DataConfig(
        train=(TrainingText(**files["train"]),),
        valid=ParallelText(**files["short"]),
        filters=FilterConfig(max_ratio=4.0, drop_duplicates=True),
    )


def measure_build(folder: Path) -> dict[str, float]:
    """Build the store."""
    data, tokenizers = data_of(folder), load_tokenizers(folder / "tokenizer")
    evaluation_store(data.valid, tokenizers)
    before, begin = anonymous_bytes(), time.perf_counter()
    store, report = training_store(data, tokenizers, folder / "stores")
    seconds = time.perf_counter() - begin
    return {
        "build_seconds": seconds,
        "pairs_per_second": report.seen / seconds,
        "pairs_kept": len(store),
        "build_bytes_a_pair": (anonymous_bytes() - before) / len(store),
    }


def measure_start(folder: Path, batch_tokens: int, num_batches: int) -> dict[str, float]:
    """Open the store and take the first batches of an epoch, as a training does."""
    data, tokenizers = data_of(folder), load_tokenizers(folder / "tokenizer")
    tune_allocator()

    def batches(store: TokenStore) -> Iterator[object]:
        plans = epoch_plans(store, batch_tokens=batch_tokens, seed=1)
        return training_micro_batches(store, plans, accumulate=1, data_position=DataPosition())

    short = batches(evaluation_store(data.valid, tokenizers))
    for _ in range(num_batches):
        next(short)
    before, begin = anonymous_bytes(), time.perf_counter()
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
        "bytes_a_pair": (anonymous_bytes() - before) / len(store),
    }


def anonymous_bytes() -> int:
    """Return the memory of this process that no file stands behind."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").split("\n"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system does not say how much memory is anonymous")


def measure(num_pairs: int, *, batch_tokens: int, num_batches: int) -> dict[str, float | str]:
    """Write a text, build its store, and start again.

    Args:
        num_pairs: of the text.
        batch_tokens: of a batch.
        num_batches: that are taken after the first one.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder, num_pairs)
        text = data_of(folder).train[0]

        def sample() -> Iterator[tuple[str, str]]:
            return itertools.islice(read_pairs(text.source, text.target), SAMPLE_LINES)

        build_tokenizers(SubwordConfig(vocab_size=8000), sample, 1).save(folder / "tokenizer")
        figures: dict[str, float | str] = {
            "machine": platform.machine(),
            "cores": os.cpu_count() or 1,
            "pairs": num_pairs,
        }
        for measured, arguments in (
            (measure_build, (folder,)),
            (measure_start, (folder, batch_tokens, num_batches)),
        ):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                figures |= process.submit(measured, *arguments).result()
        return figures


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=2_000_000, help="default: %(default)s")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="default: %(default)s")
    parser.add_argument("--batches", type=int, default=200, help="taken (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = measure(options.pairs, batch_tokens=options.batch_tokens, num_batches=options.batches)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, figure in figures.items():
        text = f"{figure:,.2f}" if isinstance(figure, float) else f"{figure}"
        print(f"{name.replace('_', ' '):22} {text}")


if __name__ == "__main__":
    main()
