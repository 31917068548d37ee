#!/usr/bin/env python
"""Measure how `tformer vocab` and `tformer train` cope with large corpora: time and memory.

The text is made here: words of Zipf's frequencies, and sentences as long as those of real corpora.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from cli import AsJson, hardware, numbers_in, show
from harness import Command, columns_table, log, own_memory, proc_bytes

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import load_config
from tformer_cli.corpus.bucketing import epoch_plans
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.process import num_cores
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import load_tokenizers

NUM_WORDS = 50_000
BLOCK_LINES = 10_000
# Words of a sentence are log-normal; newspapers have about this median and this spread.
MEDIAN_WORDS, SPREAD_WORDS, MAX_WORDS = 20, 0.6, 120
# One pair in so many repeats an earlier one.
REPEAT_EVERY = 50
SHORT_LINES = 200
# A small network: what is measured is the text.
CONFIG = """
seed: 1
data:
  root: {folder}
  source_language: en
  target_language: de
  train: [{{source: train.src, target: train.tgt}}]
  valid: {{source: short.src, target: short.tgt}}
  filters: {{max_length: 100, max_ratio: 4.0, drop_duplicates: true}}
tokenizer: {{kind: subword, algorithm: bpe, vocab_size: {vocab_size}}}
model: {{dim: 64, feedforward_dim: 128, num_encoder_layers: 1, num_decoder_layers: 1}}
training:
  optimizer: {{kind: adamw, learning_rate: 1e-3}}
  schedule: {{kind: constant, warmup_steps: 1}}
  batch_tokens: 4096
  max_steps: {steps}
  validate_every: {steps}
  validation_decoding: {{kind: greedy, max_length: 8}}
  save_every: {half}
  report_every: 1
"""


def write_text(folder: Path, num_pairs: int) -> None:
    """Write a parallel text for training, and a short one."""
    random = np.random.default_rng(1)
    syllables = np.array([c + v for c in "bdfgklmnprstvz" for v in "aeiou"])
    words = np.array(
        ["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(NUM_WORDS)]
    ).tolist()
    cumulative = np.cumsum(1 / np.arange(1, NUM_WORDS + 1))
    cumulative /= cumulative[-1]

    def sentences() -> Iterator[list[str]]:
        while True:
            lengths = random.lognormal(np.log(MEDIAN_WORDS), SPREAD_WORDS, BLOCK_LINES)
            ends = np.cumsum(lengths.astype(int).clip(1, MAX_WORDS))
            chosen = np.searchsorted(cumulative, random.random(ends[-1])).tolist()
            for start, end in itertools.pairwise([0, *ends.tolist()]):
                yield [words[index] for index in chosen[start:end]]

    for name, count in (("train", num_pairs), ("short", SHORT_LINES)):
        files = folder / f"{name}.src", folder / f"{name}.tgt"
        with files[0].open("w") as source, files[1].open("w") as target:
            repeated: list[str] = []
            for number, sentence in enumerate(itertools.islice(sentences(), count)):
                repeated = repeated if number % REPEAT_EVERY == 1 else sentence
                source.write(f"{' '.join(repeated)}\n")
                # Nearly as long as the source, as a translation is.
                target.write(f"{' '.join(repeated[: 1 + len(repeated) // 10 * 9])[::-1]}\n")


def tformer(*words: str) -> Command:
    """Run a command of tformer, and watch its memory without the token store that it maps."""
    return Command(sys.executable, "-m", "tformer_cli", *words, memory=own_memory)


def mib_of(*paths: Path) -> float:
    """Return the size of files, and of all files in folders."""
    files = itertools.chain.from_iterable((path, *path.rglob("*")) for path in paths)
    return sum(file.stat().st_size for file in files if file.is_file()) / 2**20


def measure_plan(config_file: Path, run: RunDirectory) -> dict[str, float]:
    """Open the store of a run, and plan an epoch."""
    config = load_config(config_file)
    begin = time.perf_counter()
    store, _ = training_store(config.data, load_tokenizers(run.tokenizer), run.stores)
    store.fingerprint()
    opened, before = time.perf_counter(), proc_bytes()["RssAnon"]
    plans = epoch_plans(store, batch_tokens=config.training.batch_tokens, seed=config.seed)
    num_batches = len(plans[0])
    return {
        "pairs kept": len(store),
        "batches of an epoch": num_batches,
        "open the store, s": opened - begin,
        "plan an epoch, s": time.perf_counter() - opened,
        "bytes a pair of a plan": (proc_bytes()["RssAnon"] - before) / len(store),
    }


def measure(num_pairs: int, *, steps: int = 100, vocab_size: int = 8000) -> dict[str, float]:
    """Write a text; learn its vocabulary, take the first steps, and resume halfway."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.perf_counter()
        write_text(folder, num_pairs)
        log(f"{num_pairs:,} pairs written in {time.perf_counter() - begin:.0f} s")
        config = folder / "config.yaml"
        config.write_text(
            CONFIG.format(folder=folder, vocab_size=vocab_size, steps=steps, half=steps // 2)
        )
        training = RunDirectory(folder / "run")
        words = str(config), "--run", str(training.path)
        vocab = tformer("vocab", *words)
        log(f"vocabulary in {vocab.seconds:.0f} s")
        begun = tformer("train", *words, "--device", "cpu")
        log(f"{steps} steps in {begun.seconds:.0f} s")
        training.point("last", training.checkpoint(steps // 2))
        resumed = tformer("train", *words, "--device", "cpu")
        return {
            "text, MiB": mib_of(folder / "train.src", folder / "train.tgt"),
            "vocab, s": vocab.seconds,
            "vocab, processor s": vocab.cpu_seconds,
            "vocab, peak MiB": vocab.peak_mib,
            f"train to step {steps}, s": begun.first(f"step {steps}/"),
            "train to step 1, s": begun.first("step 1/"),
            "train, processor s": begun.cpu_seconds,
            "train, peak MiB": begun.peak_mib,
            "store, MiB": mib_of(training.stores),
            "resumed, first step after s": resumed.first(f"step {steps // 2 + 1}/"),
            "resumed, peak MiB": resumed.peak_mib,
            **measure_plan(config, training),
        }


def cells(result: dict[str, float]) -> dict[str, str]:
    """Return the column of a corpus."""
    return {name: f"{value:,.{0 if value >= 100 else 1}f}" for name, value in result.items()}


app = new_app(add_completion=False)


@app.command()
def corpus_size(
    pairs: Annotated[str, typer.Option(help="Sentence pairs of each text.")] = "200000,2000000",
    as_json: AsJson = False,
) -> None:
    """Measure `tformer vocab` and `tformer train` on texts of some sizes.

    A text lies in the folder for temporary files (TMPDIR), with its store 600 bytes a pair, and is
    removed afterwards. A run begins with an empty folder, and is resumed from the
    checkpoint halfway; times count from the start of the process. Processor time and memory are
    those of all processes of a command together, memory without the files they map, which the
    system may drop.

    Example: python scripts/bench/corpus_size.py --pairs 200000,2000000,20000000
    """
    counts = numbers_in("--pairs", pairs)
    results = {f"{count:,} pairs": measure(count) for count in counts}
    columns = {name: cells(result) for name, result in results.items()}
    show(results, as_json, lambda: columns_table("", columns), hardware(num_cores()))


if __name__ == "__main__":
    run(app)
