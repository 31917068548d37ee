"""Baselines of decode.py, and the process in which each translates.

All have the weights of one run, its tokenizers and its suppressed ids. Each imports what it needs
when it begins, so that its memory holds nothing of others; CTranslate2 does without torch.
"""

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import load_tokenizers

Translate = Callable[[Sequence[str]], list[str]]


class Setting(NamedTuple):
    """How a baseline may be run: sentences of a batch, None for its own, and parallel workers."""

    batch: int | None = None
    workers: int = 1

    def __str__(self) -> str:
        batches = "own batches" if self.batch is None else f"batch {self.batch}"
        return batches if self.workers == 1 else f"{batches} x {self.workers}"


@dataclass(frozen=True, slots=True)
class Task:
    """What to translate with, and how."""

    run: str  # folder
    exports: str  # folder of the same weights for CTranslate2, a folder a number format
    beam: int  # 1 is greedy search
    alone: bool  # sentences one at a time
    threads: int  # of a baseline, all its workers together
    max_length: int = 256  # of a translation, EOS included

    @property
    def search(self) -> DecodingConfig:
        """The same as a config."""
        if self.beam == 1:
            return GreedyConfig(max_length=self.max_length)
        return BeamConfig(beam_size=self.beam, max_length=self.max_length)


def ours(task: Task, setting: Setting, precision: str = "float32") -> Translate:
    """Load tformer, as a Python program uses it."""
    import torch

    from tformer_cli.translate.translator import Translator

    torch.set_num_threads(task.threads)
    options = {"device": "cpu", "precision": precision, "backend": "native"}
    translator = Translator.load(task.run, workers=setting.workers, **options)
    return partial(translator.translate, decoding=task.search)


def marian(task: Task, setting: Setting) -> Translate:
    """Load transformers' Marian with its own search, between tokenizers and processes of ours."""
    import torch
    from baseline_marian import MarianEngine, marian_like

    from tformer_cli.search.workers import WorkersEngine
    from tformer_cli.storage.trained_model import load_trained_model
    from tformer_cli.translate.translator import Translator

    torch.set_num_threads(task.threads)
    trained = load_trained_model(RunDirectory(Path(task.run)))
    config, tokenizers = trained.config, trained.tokenizers
    model = marian_like(trained.model, config, tokenizers)
    engine = MarianEngine(model, tokenizers.target.suppressed_ids, setting.batch)
    shared = WorkersEngine(engine, setting.workers) if setting.workers > 1 else engine
    return partial(Translator(shared, tokenizers, config).translate, decoding=task.search)


def ctranslate2_backend(task: Task, setting: Setting) -> Translate:
    """Load tformer with CTranslate2 as its engine, as `tformer translate` uses it."""
    from tformer_cli.export.ctranslate2_engine import CTranslate2Engine
    from tformer_cli.storage.trained_model import find_model
    from tformer_cli.translate.translator import Translator

    files = find_model(RunDirectory(Path(task.run)))
    exported = Path(task.exports) / "float32"
    engine = CTranslate2Engine(exported, files.config.model, files.tokenizers, "float32")
    translator = Translator(engine, files.tokenizers, files.config)
    return partial(translator.translate, decoding=task.search)


def ctranslate2_alone(task: Task, setting: Setting, number_format: str = "float32") -> Translate:
    """Load CTranslate2 with exported weights; it sorts and cuts batches by itself."""
    import ctranslate2

    tokenizers = load_tokenizers(RunDirectory(Path(task.run)).tokenizer)
    source, target = tokenizers.source, tokenizers.target
    source_tokens = source.tokens(range(source.size))
    target_ids = {token: i for i, token in enumerate(target.tokens(range(target.size)))}
    translator = ctranslate2.Translator(
        str(Path(task.exports) / number_format),
        inter_threads=setting.workers,
        intra_threads=task.threads // setting.workers,
    )

    def translate(lines: Sequence[str]) -> list[str]:
        results = translator.translate_batch(
            [[source_tokens[i] for i in source.encode(line)] for line in lines],
            max_batch_size=setting.batch,
            beam_size=task.beam,
            max_decoding_length=task.max_length,
            max_input_length=0,
        )
        best = (result.hypotheses[0] for result in results)
        return [target.decode([target_ids[token] for token in tokens]) for tokens in best]

    return translate


def own_batches(task: Task) -> list[Setting]:
    """Return one process, or one for each thread."""
    return list(dict.fromkeys([Setting(workers=1), Setting(workers=task.threads)]))


def sorted_batches(task: Task) -> list[Setting]:
    """Return batch sizes of one process, and of one for each thread."""
    if task.alone:
        return [Setting(1)]
    workers = dict.fromkeys((1, task.threads))
    return [Setting(*pair[::-1]) for pair in itertools.product(workers, (32, 64, 128, 256))]


def batches_of_threads(task: Task) -> list[Setting]:
    """Return batch sizes of threads; a sentence alone has all threads or, often faster, one."""
    if task.alone:
        return list(dict.fromkeys([Setting(1, 1), Setting(1, task.threads)]))
    return [Setting(batch, task.threads) for batch in (16, 64, 256)]


# Each with what loads it for a setting, and the settings to try; the fastest one is measured.
BASELINES: dict[
    str, tuple[Callable[[Task, Setting], Translate], Callable[[Task], list[Setting]]]
] = {
    "ours": (ours, own_batches),
    "ours_bfloat16": (partial(ours, precision="bfloat16"), own_batches),
    "ours_int8": (partial(ours, precision="int8"), own_batches),
    "hf": (marian, sorted_batches),
    "ctranslate2_float32": (ctranslate2_alone, batches_of_threads),
    "ctranslate2_int8": (partial(ctranslate2_alone, number_format="int8"), batches_of_threads),
    "ctranslate2_backend": (ctranslate2_backend, lambda task: [Setting()]),
}


def serve_translation(
    name: str, task: dict[str, Any]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what translates lines by a setting when asked to."""
    if name.startswith("ctranslate2"):
        # Older versions of CTranslate2 import torch where it is installed, for nothing here.
        sys.modules["torch"] = None
    asked = Task(**task)
    load, _ = BASELINES[name]
    loaded = lru_cache(maxsize=1)(lambda *setting: load(asked, Setting(*setting)))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        translate, lines = loaded(*request["setting"]), request["lines"]
        parts = [[line] for line in lines] if asked.alone else [lines]
        started = time.perf_counter()
        texts = [text for part in parts for text in translate(part)]
        return {"seconds": time.perf_counter() - started, "texts": texts}

    return answer
