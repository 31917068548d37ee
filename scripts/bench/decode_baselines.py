"""Baselines of decode.py, and the process in which each translates.

All have the weights of one run, its tokenizers and its suppressed ids. Each imports what it needs
when it begins, so that its memory holds nothing of others; CTranslate2 does without torch.
"""

import itertools
import multiprocessing
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import load_tokenizers
from tformer_cli.text.vocabulary import EOS_ID

if TYPE_CHECKING:
    from harness import Condition

    from tformer_cli.storage.trained_model import TrainedModel


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
    condition: "Condition" = "tuned"  # of all baselines

    @property
    def search(self) -> DecodingConfig:
        """The same as a config."""
        if self.beam == 1:
            return GreedyConfig(max_length=self.max_length)
        return BeamConfig(beam_size=self.beam, max_length=self.max_length)

    def trained(self) -> "TrainedModel":
        """Load the run."""
        from tformer_cli.storage.trained_model import load_trained_model

        return load_trained_model(RunDirectory(Path(self.run)))


class Baseline(ABC):
    """Translates lines of text."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.setting = Setting()

    @classmethod
    @abstractmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        """Return the settings to try; the fastest one is measured."""

    def use(self, setting: Setting) -> None:
        """Take a setting; comes before `translate`."""
        self.setting = setting

    @abstractmethod
    def translate(self, lines: Sequence[str]) -> list[str]:
        """Return the translation of each line."""


class Ours(Baseline):
    """tformer, as a Python program uses it."""

    precision = "float32"

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        return list(dict.fromkeys([Setting(workers=1), Setting(workers=task.threads)]))

    def use(self, setting: Setting) -> None:
        """Load the translator."""
        import torch

        from tformer_cli.translate.translator import Translator

        super().use(setting)
        torch.set_num_threads(self.task.threads)
        self.translator = Translator.load(
            self.task.run,
            device="cpu",
            precision=self.precision,
            backend="native",
            workers=self.setting.workers,
        )

    def translate(self, lines: Sequence[str]) -> list[str]:
        return self.translator.translate(lines, decoding=self.task.search)


class OursBfloat16(Ours):
    """tformer with matrix products in bfloat16."""

    precision = "bfloat16"


class OursInt8(Ours):
    """tformer with int8 weights."""

    precision = "int8"


class CTranslate2Backend(Baseline):
    """tformer with CTranslate2 as its engine, as `tformer translate` uses it; without torch."""

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        return [Setting()]

    def use(self, setting: Setting) -> None:
        """Load the translator."""
        from tformer_cli.export.ctranslate2_engine import CTranslate2Engine
        from tformer_cli.storage.trained_model import find_model
        from tformer_cli.translate.translator import Translator

        super().use(setting)
        files = find_model(RunDirectory(Path(self.task.run)))
        exported = Path(self.task.exports) / CTranslate2.number_format
        engine = CTranslate2Engine.load(
            exported, files.config.model, files.tokenizers, CTranslate2.number_format
        )
        self.translator = Translator(engine, files.tokenizers, files.config)

    def translate(self, lines: Sequence[str]) -> list[str]:
        return self.translator.translate(lines, decoding=self.task.search)


class IdBaseline(Baseline):
    """Knows token ids only: text is encoded and decoded here."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.tokenizers = load_tokenizers(RunDirectory(Path(task.run)).tokenizer)

    def translate(self, lines: Sequence[str]) -> list[str]:
        encoded = [self.tokenizers.source.encode(line) for line in lines]
        filled = [index for index, ids in enumerate(encoded) if ids]
        translations: list[list[int]] = [[] for _ in lines]
        for index, ids in zip(
            filled, self.translate_ids([encoded[index] for index in filled]), strict=True
        ):
            translations[index] = list(itertools.takewhile(lambda i: i != EOS_ID, ids))
        return [self.tokenizers.target.decode(ids) for ids in translations]

    @abstractmethod
    def translate_ids(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        """Return target ids, up to EOS or beyond, for source ids without EOS."""


class BatchBaseline(IdBaseline):
    """Is given batches of similar length; several processes each take the next batch when idle."""

    pool: Any = None

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.suppressed_ids = list(self.tokenizers.target.suppressed_ids)

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        if task.alone:
            return [Setting(1)]
        workers = dict.fromkeys((1, task.threads))
        return [Setting(*pair[::-1]) for pair in itertools.product(workers, (32, 64, 128, 256))]

    def use(self, setting: Setting) -> None:
        """Start the processes of the setting; they share the weights of this one."""
        import torch

        super().use(setting)
        if self.pool is not None:
            self.pool.terminate()
            self.pool = None
        torch.set_num_threads(self.task.threads)
        if setting.workers > 1:
            threads = self.task.threads // setting.workers
            with warnings.catch_warnings():
                # Python warns of threads that hold locks; the children use none of those locks.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pool = multiprocessing.get_context("fork").Pool(
                    setting.workers, _begin_process, (self, threads)
                )

    def translate_ids(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
        ends = [[*sentences[index], EOS_ID] for index in order]
        size = self.setting.batch
        batches = [ends[start : start + size] for start in range(0, len(ends), size)]
        if self.pool is None:
            results = [self.translate_batch(batch) for batch in batches]
        else:
            results = self.pool.map(_translate_batch, batches, chunksize=1)
        translations: list[list[int]] = [[] for _ in sentences]
        for index, ids in zip(order, itertools.chain(*results), strict=True):
            translations[index] = ids
        return translations

    @abstractmethod
    def translate_batch(self, sentences: list[list[int]]) -> list[list[int]]:
        """Return target ids, up to EOS or beyond, for source ids with EOS."""


# In a process of a pool: the baseline whose batches it translates.
_owner: BatchBaseline | None = None


def _begin_process(owner: BatchBaseline, threads: int) -> None:
    import torch

    from tformer_cli.process import begin_child

    global _owner
    _owner = owner
    owner.pool = None
    begin_child()
    torch.set_num_threads(threads)


def _translate_batch(sentences: list[list[int]]) -> list[list[int]]:
    return _owner.translate_batch(sentences)


class Marian(BatchBaseline):
    """transformers' Marian and its own search."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        from baseline_marian import marian_like

        trained = task.trained()
        # As many positions as MarianConfig has by default.
        positions = {"num_positions": 1024}
        self.model = marian_like(
            trained.model, trained.config, trained.tokenizers, **positions
        ).eval()

    def translate_batch(self, sentences: list[list[int]]) -> list[list[int]]:
        from baseline_marian import generate

        return generate(self.model, sentences, self.task.search, self.suppressed_ids)


class Textbook(BatchBaseline):
    """nn.Transformer without a cache: greedy search in batches, beam search one at a time."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        from baseline_textbook import TextbookTranslator

        self.model = TextbookTranslator(task.trained(), task.max_length).eval()

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        return [Setting(1 if task.alone or task.beam > 1 else 32)]

    def translate_batch(self, sentences: list[list[int]]) -> list[list[int]]:
        if self.task.beam == 1:
            return self.model.greedy(sentences)
        return [self.model.beam(sentence, self.task.beam) for sentence in sentences]


class CTranslate2(IdBaseline):
    """CTranslate2 with the exported weights; it sorts and cuts batches by itself."""

    number_format = "float32"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        source, target = self.tokenizers.source, self.tokenizers.target
        self.source_tokens = source.tokens(range(source.size))
        self.target_ids = {token: i for i, token in enumerate(target.tokens(range(target.size)))}

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        if task.alone:
            # One worker, with all threads or, which may be faster, with one.
            return list(dict.fromkeys([Setting(1, 1), Setting(1, task.threads)]))
        return [Setting(batch, task.threads) for batch in (16, 64, 256)]

    def use(self, setting: Setting) -> None:
        """Load the model."""
        import ctranslate2

        super().use(setting)
        self.translator = ctranslate2.Translator(
            str(Path(self.task.exports) / self.number_format),
            inter_threads=setting.workers,
            intra_threads=self.task.threads // setting.workers,
        )

    def translate_ids(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        results = self.translator.translate_batch(
            [[self.source_tokens[i] for i in ids] for ids in sentences],
            max_batch_size=self.setting.batch,
            beam_size=self.task.beam,
            max_decoding_length=self.task.max_length,
            max_input_length=0,
        )
        return [[self.target_ids[token] for token in result.hypotheses[0]] for result in results]


class CTranslate2Int8(CTranslate2):
    """CTranslate2 with int8 weights."""

    number_format = "int8"


BASELINES: dict[str, type[Baseline]] = {
    "ours": Ours,
    "ours_bfloat16": OursBfloat16,
    "ours_int8": OursInt8,
    "hf": Marian,
    "textbook": Textbook,
    "ctranslate2_float32": CTranslate2,
    "ctranslate2_int8": CTranslate2Int8,
    "ctranslate2_backend": CTranslate2Backend,
}


def serve_translation(name: str, task: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    """Return what translates when asked to."""
    if issubclass(BASELINES[name], CTranslate2 | CTranslate2Backend):
        # Older versions of CTranslate2 import torch where it is installed, for nothing here.
        sys.modules["torch"] = None
    return partial(answer, BASELINES[name](Task(**task)))


def answer(baseline: Baseline, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    match request:
        case {"use": setting}:
            baseline.use(Setting(*setting))
            return {}
        case {"lines": lines}:
            parts = [[line] for line in lines] if baseline.task.alone else [lines]
            started = time.perf_counter()
            texts = [text for part in parts for text in baseline.translate(part)]
            return {"seconds": time.perf_counter() - started, "texts": texts}
    raise ValueError(f"unknown request: {request}")
