"""Those who translate in decode.py: tformer, transformers' Marian, a textbook loop, CTranslate2.

All have the weights of one run, its tokenizers, and the tokens that no translation contains. As a
script this is one of them in a process of its own, which translates while it is asked: requests and
answers are lines of JSON. Each imports what it needs when it begins, so its memory holds nothing
that only another needs; CTranslate2 above all does without torch.
"""

import itertools
import json
import multiprocessing
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.text.vocabulary import EOS_ID

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

    from conditions import Condition
    from torch import nn

    from tformer_cli.translate.translator import Translator


class Setting(NamedTuple):
    """How a contestant may be run.

    Attributes:
        batch: sentences of a batch; None leaves it to the contestant.
        workers: that translate side by side; the threads are shared among them.
    """

    batch: int | None = None
    workers: int = 1

    def __str__(self) -> str:
        batches = "own batches" if self.batch is None else f"batch {self.batch}"
        return batches if self.workers == 1 else f"{batches} x {self.workers}"


@dataclass(frozen=True, slots=True)
class Task:
    """What to translate with, and how.

    Attributes:
        run: folder of the run.
        exports: folder of the same weights in CTranslate2's format, a folder a number format.
        beam: beam size; 1 is greedy search.
        alone: whether each sentence is translated by itself, one after another.
        threads: of a contestant, all its workers together.
        max_length: longest translation in tokens, `</s>` included.
        condition: environment and allocator of every contestant.
    """

    run: str
    exports: str
    beam: int
    alone: bool
    threads: int
    max_length: int = 256
    condition: "Condition" = "tuned"

    @property
    def search(self) -> DecodingConfig:
        """The same as a config says it."""
        if self.beam == 1:
            return GreedyConfig(max_length=self.max_length)
        return BeamConfig(beam_size=self.beam, max_length=self.max_length)


class Contestant(ABC):
    """One who translates.

    Attributes:
        task: what and how.
        setting: the way in which it is run.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    @classmethod
    @abstractmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        """Return the ways in which a contestant can be run; the fastest is for others to find."""

    def use(self, setting: Setting) -> None:
        """Make ready for translating in one of the settings; comes before anything else."""
        self.setting = setting

    @abstractmethod
    def translate(self, lines: Sequence[str]) -> list[str]:
        """Return the translation of each line."""


class Ours(Contestant):
    """tformer, as a Python program has it."""

    precision: ClassVar[str] = "float32"

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        return list(dict.fromkeys([Setting(workers=1), Setting(workers=task.threads)]))

    def use(self, setting: Setting) -> None:
        """Load the translator."""
        import torch

        super().use(setting)
        torch.set_num_threads(self.task.threads)
        self.translator = self.loaded()

    def loaded(self) -> "Translator":
        from tformer_cli.translate.translator import Translator

        return Translator.load(
            self.task.run, device="cpu", precision=self.precision, workers=self.setting.workers
        )

    def translate(self, lines: Sequence[str]) -> list[str]:
        return self.translator.translate(lines, decoding=self.task.search)


class OursBfloat16(Ours):
    """tformer with products of bfloat16."""

    precision = "bfloat16"


class OursInt8(Ours):
    """tformer with weights of eight bits."""

    precision = "int8"


class OnIds(Contestant):
    """One that knows ids only: text becomes ids and ids become text here."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.tokenizers: Tokenizers = load_tokenizers(RunDirectory(Path(task.run)).tokenizer)

    def translate(self, lines: Sequence[str]) -> list[str]:
        encoded = [self.tokenizers.source.encode(line) for line in lines]
        places = [place for place, ids in enumerate(encoded) if ids]
        translations: list[list[int]] = [[] for _ in lines]
        for place, ids in zip(places, self.written([encoded[i] for i in places]), strict=True):
            translations[place] = list(itertools.takewhile(lambda i: i != EOS_ID, ids))
        return [self.tokenizers.target.decode(ids) for ids in translations]

    @abstractmethod
    def written(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        """Return target ids, up to `</s>` or beyond, for source ids without `</s>`."""


class InBatches(OnIds):
    """One that has to be given batches; they are of sentences of similar length.

    Where several processes work, each takes the next batch when it is done with one.
    """

    batches: ClassVar[tuple[int, ...]] = (32, 64, 128, 256)
    pool: "Pool | None" = None

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.suppressed_ids = list(self.tokenizers.target.suppressed_ids)

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        if task.alone:
            return [Setting(1)]
        counts = dict.fromkeys((1, task.threads))
        return [Setting(batch, workers) for workers in counts for batch in cls.batches]

    def use(self, setting: Setting) -> None:
        """Begin the processes of the setting; they share the weights of this one."""
        import torch

        super().use(setting)
        if self.pool is not None:
            self.pool.terminate()
            self.pool = None
        torch.set_num_threads(self.task.threads)
        if setting.workers > 1:
            context, threads = multiprocessing.get_context("fork"), self.task.threads
            with warnings.catch_warnings():
                # Python warns of threads that hold locks; the child takes up none of theirs.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pool = context.Pool(
                    setting.workers, _begin_process, (self, threads // setting.workers)
                )

    def written(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        order = sorted(range(len(sentences)), key=lambda place: -len(sentences[place]))
        size = self.setting.batch
        starts = range(0, len(order), size)
        batches = [[[*sentences[i], EOS_ID] for i in order[at : at + size]] for at in starts]
        if self.pool is None:
            found = [self.searched(batch) for batch in batches]
        else:
            found = self.pool.map(_searched, batches, chunksize=1)
        written: list[list[int]] = [[] for _ in sentences]
        for place, ids in zip(order, itertools.chain(*found), strict=True):
            written[place] = ids
        return written

    @abstractmethod
    def searched(self, sentences: list[list[int]]) -> list[list[int]]:
        """Return target ids, up to `</s>` or beyond, for a batch of source ids with it."""


# In a process of a pool: whose batches it searches.
_owner: InBatches | None = None


def _begin_process(owner: InBatches, threads: int) -> None:
    """Begin a process of a pool, forked from its owner."""
    import torch

    from tformer_cli.process import begin_child

    global _owner
    _owner = owner
    owner.pool = None
    begin_child()
    torch.set_num_threads(threads)


def _searched(sentences: list[list[int]]) -> list[list[int]]:
    assert _owner is not None
    return _owner.searched(sentences)


class Marian(InBatches):
    """transformers' Marian model and its own search."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        from peers.marian import build_marian, copy_weights

        from tformer_cli.storage.trained_model import load_trained_model

        trained = load_trained_model(RunDirectory(Path(task.run)))
        # As many positions as MarianConfig has by default.
        self.model = build_marian(trained.config, trained.tokenizers, num_positions=1024).eval()
        copy_weights(trained.model, self.model)
        set_epsilon(self.model, trained.config.model.norm_epsilon)

    def searched(self, sentences: list[list[int]]) -> list[list[int]]:
        import torch

        from tformer_cli.padding import pad_rows

        source, mask = pad_rows(sentences)
        with torch.inference_mode():
            rows = self.model.generate(
                input_ids=source,
                attention_mask=mask.long(),
                do_sample=False,
                num_beams=self.task.beam,
                max_new_tokens=self.task.max_length,
                min_new_tokens=1,
                suppress_tokens=self.suppressed_ids,
            )
        return rows[:, 1:].tolist()


class Textbook(InBatches):
    """torch's nn.Transformer, which runs over the whole prefix for every token.

    Its greedy search takes batches, its beam search one sentence at a time.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        from decoders.textbook import TextbookTranslator

        from tformer_cli.storage.trained_model import load_trained_model

        trained = load_trained_model(RunDirectory(Path(task.run)))
        self.model = TextbookTranslator(trained, task.max_length).eval()
        set_epsilon(self.model, trained.config.model.norm_epsilon)

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        return [Setting(1 if task.alone or task.beam > 1 else 32)]

    def searched(self, sentences: list[list[int]]) -> list[list[int]]:
        if self.task.beam == 1:
            return self.model.greedy(sentences)
        return [self.model.beam(sentence, self.task.beam) for sentence in sentences]


class Uncached(InBatches):
    """tformer's model without its cache: it runs over the whole prefix for every token."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        import torch

        from tformer_cli.inference.prepare import prepare_for_inference
        from tformer_cli.storage.trained_model import load_trained_model

        self.model = prepare_for_inference(
            load_trained_model(RunDirectory(Path(task.run))).model, torch.device("cpu")
        )

    def searched(self, sentences: list[list[int]]) -> list[list[int]]:
        import torch
        from decoders.textbook import greedy

        from tformer_cli.padding import pad_rows

        source, mask = pad_rows(sentences)
        with torch.inference_mode():
            memory = self.model.encode(source, mask)
            return greedy(
                lambda rows: self.model.output(self.model.decoder(rows, memory)[:, -1]),
                len(sentences),
                self.task.max_length,
                self.suppressed_ids,
            )


class CTranslate2(OnIds):
    """CTranslate2 with the exported weights; it sorts and cuts batches by itself."""

    number_format: ClassVar[str] = "float32"
    batches: ClassVar[tuple[int, ...]] = (16, 64, 256)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        target = self.tokenizers.target
        self.source_tokens = self.tokenizers.source.tokens(range(self.tokenizers.source.size))
        self.target_ids = {token: i for i, token in enumerate(target.tokens(range(target.size)))}

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        if task.alone:
            # It keeps one worker busy: with all threads, or, which may be faster, with one.
            return list(dict.fromkeys([Setting(1, 1), Setting(1, task.threads)]))
        return [Setting(batch, task.threads) for batch in cls.batches]

    def use(self, setting: Setting) -> None:
        """Load the model."""
        import ctranslate2

        super().use(setting)
        self.translator = ctranslate2.Translator(
            str(Path(self.task.exports) / self.number_format),
            inter_threads=setting.workers,
            intra_threads=self.task.threads // setting.workers,
        )

    def written(self, sentences: Sequence[list[int]]) -> list[list[int]]:
        results = self.translator.translate_batch(
            [[self.source_tokens[i] for i in ids] for ids in sentences],
            max_batch_size=self.setting.batch,
            beam_size=self.task.beam,
            max_decoding_length=self.task.max_length,
            max_input_length=0,
        )
        return [[self.target_ids[token] for token in found.hypotheses[0]] for found in results]


class CTranslate2Int8(CTranslate2):
    """CTranslate2 with weights of eight bits."""

    number_format = "int8"


class CTranslate2Backend(Ours):
    """tformer with CTranslate2 as its engine, as `tformer translate --backend ctranslate2`."""

    @classmethod
    def settings(cls, task: Task) -> Sequence[Setting]:
        return [Setting()]

    def loaded(self) -> "Translator":
        import torch

        from tformer_cli.export.ctranslate2 import CTranslate2Format
        from tformer_cli.storage.trained_model import load_trained_model
        from tformer_cli.translate.translator import Translator

        trained = load_trained_model(RunDirectory(Path(self.task.run)))
        translator = Translator.from_model(
            trained.model, trained.tokenizers, trained.config, torch.device("cpu")
        )
        exported = Path(self.task.exports) / CTranslate2.number_format
        translator.engine = CTranslate2Format().engine(trained, exported)
        return translator


CONTESTANTS: dict[str, type[Contestant]] = {
    "ours": Ours,
    "ours_bfloat16": OursBfloat16,
    "ours_int8": OursInt8,
    "hf": Marian,
    "textbook": Textbook,
    "ctranslate2_float32": CTranslate2,
    "ctranslate2_int8": CTranslate2Int8,
    "ctranslate2_backend": CTranslate2Backend,
    "uncached": Uncached,
}


def set_epsilon(model: "nn.Module", epsilon: float) -> None:
    """Give all norms of a model of others the epsilon of ours."""
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = epsilon


def serve(name: str, task: str) -> None:
    """Be the end of the pipe that answers."""
    if issubclass(CONTESTANTS[name], CTranslate2):
        # CTranslate2 imports torch where it is, and needs it for nothing here.
        sys.modules["torch"] = None
    contestant = CONTESTANTS[name](Task(**json.loads(task)))
    for line in sys.stdin:
        print(json.dumps(answer(contestant, json.loads(line))), flush=True)


def answer(contestant: Contestant, request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked, and return what came of it."""
    match request:
        case {"use": setting}:
            contestant.use(Setting(*setting))
            return {}
        case {"lines": lines}:
            parts = [[line] for line in lines] if contestant.task.alone else [lines]
            started = time.perf_counter()
            texts = [text for part in parts for text in contestant.translate(part)]
            return {"seconds": time.perf_counter() - started, "texts": texts}
        case {"report": True}:
            # What it imports must not count as memory of who translates.
            from conditions import report

            return report()
    raise ValueError(f"nobody asks for {request}")
