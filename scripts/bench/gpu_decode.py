"""A part of gpu.py: decoding by a network with its initial weights, as fast as a trained one."""

import time

import torch
from gpu_throughput import NETWORKS, SEED

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.device import batch_size_factor, peak_memory, resolve_device, resolve_precision
from tformer_cli.model.build import build_model
from tformer_cli.search.engine import Request, SpecialTokens
from tformer_cli.search.native_engine import NativeEngine
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID, NUM_SPECIAL


def decode(
    network: str = "base",
    *,
    device: str = "cuda",
    precisions: tuple[str, ...] = ("bfloat16", "float32"),
    vocab_size: int = 37_000,
    num_sentences: int = 8192,
    length: int = 26,
) -> dict[str, object]:
    """Translate random sentences into as many tokens, greedily and by a beam of 5.

    The main result is greedy search in the first precision.
    """
    on = resolve_device(device)
    limits = {"min_length": length - 1, "max_length": length}
    searches: dict[str, DecodingConfig] = {
        "greedy": GreedyConfig(**limits),
        "beam 5": BeamConfig(beam_size=5, **limits),
    }
    generator = torch.Generator().manual_seed(SEED)
    shape = (num_sentences, length - 1)
    ids = torch.randint(NUM_SPECIAL, vocab_size, shape, generator=generator).tolist()
    requests = [Request((*sentence, EOS_ID)) for sentence in ids]
    tokens = SpecialTokens(BOS_ID, EOS_ID, [x for x in range(NUM_SPECIAL) if x != EOS_ID])
    model = build_model(
        NETWORKS[network], source_size=vocab_size, target_size=vocab_size, seed=SEED
    ).eval()
    speeds = {}
    for precision in precisions:
        dtype = resolve_precision(precision, on)
        engine = NativeEngine(model, tokens, device=on, precision=dtype)
        for name, config in searches.items():
            # Kernels are chosen here.
            engine.translate(requests[: len(requests) // 8], config, scored=False)
            started = time.perf_counter()
            results = engine.translate(requests, config, scored=False)
            seconds = time.perf_counter() - started
            assert all(len(best.token_ids) >= length - 1 for best, *_ in results)
            speeds[f"{name}, {precision}"] = num_sentences / seconds
    return {
        "sentences_per_second": next(iter(speeds.values())),
        "speeds": speeds,
        "batch_size_factor": batch_size_factor(on),
        "max_slots": engine.max_slots,  # lower than at first if memory has run out
        "peak_memory_mib": peak_memory(on) / 2**20,
    }
