"""Parts of gpu.py: decoding by a network with its initial weights, as fast as a trained one.

All translate the same random sentences into as many tokens, greedily and by a beam of 5. The main
result of each is greedy search in its first precision.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from gpu_throughput import NETWORKS, SEED, synthetic_config

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.device import batch_size_factor, peak_memory, resolve_device, resolve_precision
from tformer_cli.model.build import build_model
from tformer_cli.model.network import Seq2Seq
from tformer_cli.search.engine import Request, SpecialTokens
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.normalizer import Normalizer
from tformer_cli.text.symbol import WordTokenizer
from tformer_cli.text.tokenizer import Tokenizers
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, NUM_SPECIAL, Vocabulary

SUPPRESSED_IDS = [x for x in range(NUM_SPECIAL) if x != EOS_ID]
# How CTranslate2 says that libraries of CUDA are missing.
NO_LIBRARY = "is not found or cannot be loaded"

# From sentences of ids with EOS, to ids up to EOS or beyond.
Translate = Callable[[Sequence[list[int]], DecodingConfig], Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Workload:
    """Random sentences, and the network that translates them."""

    network: str = "base"
    vocab_size: int = 37_000
    num_sentences: int = 8192
    length: int = 26  # of each sentence on either side, with EOS

    def model(self) -> Seq2Seq:
        """Return the network with its initial weights."""
        sizes = {"source_size": self.vocab_size, "target_size": self.vocab_size}
        return build_model(NETWORKS[self.network], **sizes, seed=SEED).eval()

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


def decode(
    network: str = "base",
    *,
    device: str = "cuda",
    precisions: tuple[str, ...] = ("bfloat16", "float32"),
    **sizes: int,
) -> dict[str, object]:
    """Measure our engine; `sizes` are those of the workload."""
    on, workload = resolve_device(device), Workload(network, **sizes)
    tokens = SpecialTokens(BOS_ID, EOS_ID, SUPPRESSED_IDS)
    model = workload.model()
    speeds = {}
    for precision in precisions:
        engine = NativeEngine(model, tokens, device=on, precision=resolve_precision(precision, on))

        def translate(
            sentences: Sequence[list[int]],
            search: DecodingConfig,
            engine: NativeEngine = engine,
        ) -> Sequence[Sequence[int]]:
            requests = [Request(tuple(sentence)) for sentence in sentences]
            results = engine.translate(requests, search, scored=False)
            return [best.token_ids for best, *_ in results]

        for name, speed in workload.speeds(translate).items():
            speeds[f"{name}, {precision}"] = speed
    return {
        "sentences_per_second": next(iter(speeds.values())),
        "speeds": speeds,
        "batch_size_factor": batch_size_factor(on),
        "max_slots": engine.max_slots,  # lower than at first if memory has run out
        "peak_memory_mib": peak_memory(on) / 2**20,
    }


def decode_marian(
    network: str = "base",
    *,
    device: str = "cuda",
    precision: str = "bfloat16",
    batch: int = 512,
    **sizes: int,
) -> dict[str, object]:
    """Measure transformers' `generate` with the same weights, in batches of so many sentences."""
    from baseline_marian import generate, marian_like

    on, workload = resolve_device(device), Workload(network, **sizes)
    side = SimpleNamespace(size=workload.vocab_size)
    marian = marian_like(
        workload.model(),
        synthetic_config(network),
        SimpleNamespace(source=side, target=side),
        num_positions=workload.length + 1,
    )
    marian = marian.eval().to(on, resolve_precision(precision, on))

    def translate(
        sentences: Sequence[list[int]], search: DecodingConfig
    ) -> Sequence[Sequence[int]]:
        return [
            row
            for start in range(0, len(sentences), batch)
            for row in generate(marian, sentences[start : start + batch], search, SUPPRESSED_IDS)
        ]

    speeds = workload.speeds(translate)
    return {
        "sentences_per_second": speeds["greedy"],
        "speeds": speeds,
        "peak_memory_mib": peak_memory(on) / 2**20,
    }


def decode_ctranslate2(
    network: str = "base",
    *,
    device: str = "cuda",
    precision: str = "float16",
    batch: int = 512,
    **sizes: int,
) -> dict[str, object]:
    """Measure CTranslate2 with the same weights, in batches of so many sentences."""
    import ctranslate2

    from tformer_cli.export.ctranslate2 import CTranslate2Format

    if device == "cuda" and not ctranslate2.get_cuda_device_count():
        return {"left_out": f"CTranslate2 {ctranslate2.__version__} sees no GPU"}
    workload = Workload(network, **sizes)
    words = Vocabulary.of(f"w{i}" for i in range(NUM_SPECIAL, workload.vocab_size))
    side = WordTokenizer(words.to_json(), Normalizer(), name="words")
    tokenizers = Tokenizers(side, side, shared=True)
    trained = TrainedModel(synthetic_config(network), tokenizers, workload.model(), step=0)
    with tempfile.TemporaryDirectory() as folder:
        CTranslate2Format(precision).write(trained, Path(folder))
        translator = ctranslate2.Translator(folder, device=device, compute_type=precision)

    def translate(
        sentences: Sequence[list[int]], search: DecodingConfig
    ) -> Sequence[Sequence[str]]:
        results = translator.translate_batch(
            # It adds EOS itself.
            [side.tokens(sentence[:-1]) for sentence in sentences],
            max_batch_size=batch,
            beam_size=search.beam_size if isinstance(search, BeamConfig) else 1,
            min_decoding_length=search.min_length,
            max_decoding_length=search.max_length,
            max_input_length=0,
        )
        return [result.hypotheses[0] for result in results]

    try:
        speeds = workload.speeds(translate)
    except RuntimeError as error:
        if NO_LIBRARY not in str(error):
            raise
        return {"left_out": f"CTranslate2 {ctranslate2.__version__}: {error}"}
    return {"sentences_per_second": speeds["greedy"], "speeds": speeds}
