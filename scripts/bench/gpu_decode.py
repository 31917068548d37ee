"""Parts of gpu.py: decoding by a network with its initial weights, as fast as a trained one.

All translate the same random sentences into as many tokens, greedily and by a beam of 5.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from gpu_throughput import SEED, synthetic_config, synthetic_model

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.device import peak_memory, resolve_device, resolve_precision
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.engine import Engine, Request, SpecialTokens
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.special_tokens import BOS_ID, EOS_ID, NUM_SPECIAL
from tformer_cli.text.symbol import WordTokenizer
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import Vocabulary

SUPPRESSED_IDS = [x for x in range(NUM_SPECIAL) if x != EOS_ID]
# Sentences of a batch of the others; our engine finds its own.
BATCH = 512
# How CTranslate2 says that it was built without CUDA, or that libraries of CUDA are missing.
NO_CUDA = ("not compiled with CUDA support", "is not found or cannot be loaded")

# From sentences of ids with EOS, to the tokens of each, without EOS or up to it.
Translate = Callable[[Sequence[list[int]], DecodingConfig], Sequence[Sequence[object]]]


@dataclass(frozen=True, slots=True)
class Workload:
    """Random sentences, and the network that translates them."""

    network: str = "base"
    vocab_size: int = 37_000
    num_sentences: int = 8192
    length: int = 26  # of each sentence on either side, with EOS

    def model(self) -> Seq2Seq:
        """Return the network with its initial weights."""
        return synthetic_model(self.network, self.vocab_size).eval()

    def speeds(self, translate: Translate) -> dict[str, float]:
        """Return the sentences a second of each search."""
        generator = torch.Generator().manual_seed(SEED)
        shape = (self.num_sentences, self.length - 1)
        ids = torch.randint(NUM_SPECIAL, self.vocab_size, shape, generator=generator).tolist()
        sentences = [[*sentence, EOS_ID] for sentence in ids]
        limits = {"min_length": self.length - 1, "max_length": self.length}
        searches: dict[str, DecodingConfig] = {
            "greedy": GreedyConfig(**limits),
            "beam 5": BeamConfig(beam_size=5, **limits),
        }
        speeds = {}
        for name, search in searches.items():
            # Kernels are chosen here.
            translate(sentences[: len(sentences) // 8], search)
            started = time.perf_counter()
            results = translate(sentences, search)
            speeds[name] = self.num_sentences / (time.perf_counter() - started)
            assert all(len(row) >= self.length - 1 for row in results)
        return speeds


def ours(workload: Workload, device: torch.device, precision: str) -> Translate:
    """Load our engine."""
    dtype = resolve_precision(precision, device)
    tokens = SpecialTokens(BOS_ID, EOS_ID, SUPPRESSED_IDS)
    return by_engine(NativeEngine(workload.model(), tokens, device=device, precision=dtype))


def marian(workload: Workload, device: torch.device, precision: str) -> Translate:
    """Load transformers' Marian with the same weights."""
    from baseline_marian import MarianEngine, marian_like

    side = SimpleNamespace(size=workload.vocab_size)
    tokenizers = SimpleNamespace(source=side, target=side)
    model = marian_like(workload.model(), synthetic_config(workload.network), tokenizers)
    model = model.to(device, resolve_precision(precision, device))
    return by_engine(MarianEngine(model, SUPPRESSED_IDS, BATCH))


def by_engine(engine: Engine) -> Translate:
    """Return what translates by an engine."""

    def translate(sentences: Sequence[list[int]], search: DecodingConfig) -> list[Sequence[int]]:
        requests = [Request(tuple(sentence)) for sentence in sentences]
        return [best.token_ids for best, *_ in engine.translate(requests, search, scored=False)]

    return translate


def ctranslate2(workload: Workload, device: torch.device, precision: str) -> Translate:
    """Load CTranslate2 with the same weights."""
    from ctranslate2 import Translator

    from tformer_cli.export.ctranslate2 import CTranslate2Format

    words = Vocabulary.of(f"w{i}" for i in range(NUM_SPECIAL, workload.vocab_size))
    side = WordTokenizer(words.to_json(), Normalizer(), name="words")
    tokenizers = Tokenizers(side, side, shared=True)
    trained = TrainedModel(synthetic_config(workload.network), tokenizers, workload.model(), step=0)
    with tempfile.TemporaryDirectory() as folder:
        CTranslate2Format(precision).write(trained, Path(folder))
        translator = Translator(folder, device=device.type, compute_type=precision)

    def translate(sentences: Sequence[list[int]], search: DecodingConfig) -> list[Sequence[str]]:
        results = translator.translate_batch(
            # It adds EOS itself.
            [side.tokens(sentence[:-1]) for sentence in sentences],
            max_batch_size=BATCH,
            beam_size=search.beam_size if isinstance(search, BeamConfig) else 1,
            min_decoding_length=search.min_length,
            max_decoding_length=search.max_length,
            max_input_length=0,
        )
        return [result.hypotheses[0] for result in results]

    return translate


# Each with its precisions.
BASELINES = {
    "ours": (ours, ("bfloat16", "float32")),
    "marian": (marian, ("bfloat16",)),
    "ctranslate2": (ctranslate2, ("float16",)),
}


def decode(
    baseline: str, *, device: str = "cuda", precisions: Sequence[str] = (), **sizes: int
) -> dict[str, object]:
    """Measure a baseline; the main result is greedy search in its first precision.

    `precisions` are its own by default; `sizes` are those of the workload.
    """
    load, own_precisions = BASELINES[baseline]
    on, workload = resolve_device(device), Workload(**sizes)
    speeds = {}
    try:
        for precision in precisions or own_precisions:
            for search, speed in workload.speeds(load(workload, on, precision)).items():
                speeds[f"{search}, {precision}"] = speed
    except RuntimeError as error:
        if not any(words in str(error) for words in NO_CUDA):
            raise
        return {"left_out": f"{baseline}: {error}"}
    return {
        "sentences_per_second": next(iter(speeds.values())),
        "speeds": speeds,
        "peak_memory_mib": peak_memory(on) / 2**20,
    }
