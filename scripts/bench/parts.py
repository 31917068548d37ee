#!/usr/bin/env python
"""Measure single components: norms, attention kernels, optimizers, warm-up."""

import math
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from ablation import BASE
from cli import CPU, MULTI30K, AsJson, Data, Rounds, Threads, hardware, show
from decode import SIZES
from harness import aligned, log, proc_bytes, run_in_process, seconds_of, spread, time_ratio
from train import benchmark_config
from train_baselines import Ours, Task

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.config.schema.training import AdamWConfig
from tformer_cli.corpus.reader import read_pairs
from tformer_cli.inference.prepare import prepare_for_inference
from tformer_cli.kernels.attention import AttentionMask, kernel_attend, naive_attend
from tformer_cli.model.blocks.residual import build_norm
from tformer_cli.padding import pad_rows
from tformer_cli.process import tune_allocator
from tformer_cli.text.vocabulary import BOS_ID, EOS_ID
from tformer_cli.training.optim import build_schedule
from tformer_cli.translate.translator import Translator

LENGTHS = (512, 1024, 2048, 4096)
ATTENTIONS = {"fast": kernel_attend, "naive": naive_attend}
NUM_HEADS, HEAD_DIM = 4, 32
# Momentum and learning rates of plain gradient descent; the best rate counts.
MOMENTUM = 0.9
CACHE_LENGTHS = (5, 10, 20, 40, 80)
CACHE_SENTENCES = 16
SGD_RATES = (0.03, 0.1, 0.3, 1.0)


def norm_ratio(dim: int, rows: int, rounds: int) -> float:
    """Return the time of LayerNorm as a multiple of RMSNorm's, forward and backward."""
    states = torch.randn(rows, dim, requires_grad=True)
    layer, rms = (build_norm(kind, dim, 1e-6, bias=True) for kind in ("layer", "rms"))
    return time_ratio(
        lambda: layer(states).sum().backward(), lambda: rms(states).sum().backward(), rounds
    )


def attention_cost(kind: str, length: int, threads: int) -> dict[str, float]:
    """Return the cost of causal self-attention, forward and backward.

    That is the median of the seconds, and the peak memory besides inputs and gradients, in bytes.
    """
    torch.set_num_threads(threads)
    shape = (1, NUM_HEADS, length, HEAD_DIM)
    queries, keys, values = (torch.randn(shape, requires_grad=True) for _ in range(3))

    def attend() -> None:
        mask = AttentionMask(is_causal=True)
        ATTENTIONS[kind](queries, keys, values, mask, 0.0).sum().backward()

    attend()
    # Linux resets the peak, which the imports have set, to the memory held now.
    Path("/proc/self/clear_refs").write_text("5")
    before = proc_bytes()["VmRSS"]
    median_seconds = median(seconds_of(attend) for _ in range(5))
    return {"time": median_seconds, "memory": proc_bytes()["VmHWM"] - before}


def attention_ratios(rounds: int, threads: int) -> dict[str, float]:
    """Return time and memory of the formula as multiples of the kernel's, by length."""
    results = {}
    for length in LENGTHS:
        size = {"length": length, "threads": threads}
        turns = [
            {kind: run_in_process("parts.attention_cost", kind=kind, **size) for kind in ATTENTIONS}
            for _ in range(rounds)
        ]
        for unit in ("time", "memory"):
            ratio = median(turn["naive"][unit] / turn["fast"][unit] for turn in turns)
            results[f"{unit} of the attention formula / kernel, {length:,} tokens"] = ratio
    return results


def cache_ratios(task: Task, rounds: int) -> dict[int, float]:
    """Return how many times as fast greedy search is with the KV cache, by length of the output.

    Speed does not depend on what is written, so the model has its initial weights.
    """
    model = task.our_model()
    translator = Translator.from_model(model, task.tokenizers, task.config, CPU)
    text = task.config.data.valid
    pairs = spread(list(read_pairs(text.source, text.target)), CACHE_SENTENCES)
    lines = [line for line, _ in pairs]
    source, mask = pad_rows([[*ids, EOS_ID] for ids in task.tokenizers.source.encode_batch(lines)])
    prepared = prepare_for_inference(model, CPU)

    def cached(length: int) -> None:
        search = GreedyConfig(min_length=length - 1, max_length=length)
        translator.translate(lines, decoding=search)

    @torch.inference_mode()
    def uncached(length: int) -> None:
        memory, rows = prepared.encode(source, mask), torch.full((len(source), 1), BOS_ID)
        for _ in range(length):
            best = prepared.output(prepared.decoder(rows, memory)[:, -1]).argmax(dim=-1)
            rows = torch.cat((rows, best[:, None]), dim=1)

    return {
        length: time_ratio(partial(uncached, length), partial(cached, length), rounds)
        for length in CACHE_LENGTHS
    }


def valid_losses(task: Task, steps: int) -> dict[str, float]:
    """Return the validation loss by optimizer after some steps, in nats per token."""
    warm, cold = (task.with_schedule(steps, warmup) for warmup in (max(1, steps // 6), 1))
    baselines = {"adamw": Ours(warm), "adamw without warm-up": Ours(cold)}
    baselines |= {f"sgd {rate:g}": with_sgd(Ours(warm), rate) for rate in SGD_RATES}
    losses = {}
    for name, baseline in baselines.items():
        for _ in baseline.losses(islice(baseline.batches(), steps)):
            pass
        losses[name] = baseline.valid_loss()
    return losses


def with_sgd(baseline: Ours, rate: float) -> Ours:
    """Let a baseline train by gradient descent with momentum, from a peak learning rate."""
    state, training = baseline.train_state, baseline.task.config.training
    baseline.train_state = replace(
        state,
        optimizer=torch.optim.SGD(state.model.parameters(), rate, momentum=MOMENTUM),
        scheduler=build_schedule(training.schedule, peak=rate, max_steps=training.max_steps),
    )
    return baseline


def perplexity_ratios(task: Task, steps: int) -> dict[str, float]:
    """Return validation perplexities as multiples of that of AdamW with warm-up."""
    losses = valid_losses(task, steps)
    log(str(losses))
    cold = losses["adamw without warm-up"]
    best = min(losses[f"sgd {rate:g}"] for rate in SGD_RATES)
    return {
        "perplexity of SGD with momentum / AdamW": math.exp(best - losses["adamw"]),
        "perplexity of AdamW without warm-up / with it": math.exp(cold - losses["adamw"]),
    }


app = new_app(add_completion=False)


@app.command()
def parts(
    data: Data = MULTI30K,
    steps: Annotated[int, typer.Option(min=1, help="Steps with each optimizer.")] = 300,
    rounds: Rounds = 5,
    threads: Threads = 2,
    as_json: AsJson = False,
) -> None:
    """Measure single components, as ratios taken in one run.

    Norms: time of LayerNorm over RMSNorm's, of 2,048 states. Attention: time and memory of the
    written-out formula over those of torch's kernel, forward and backward, causal, four heads of
    32. Optimizers: validation perplexity of Multi30k over that of AdamW with warm-up, for gradient
    descent with momentum (the best of four rates) and for AdamW without warm-up. KV cache: time of
    greedy search without it over that with it, of 16 sentences, by the length of the translations.

    Example: python scripts/bench/parts.py --steps 100
    """
    torch.set_num_threads(threads)
    tune_allocator()
    tiny = benchmark_config(data, "tiny", vocab_size=8000)
    adamw = replace(tiny.training, optimizer=AdamWConfig(learning_rate=2.5e-3), batch_tokens=2048)
    task = Task.of(replace(tiny, model=BASE, training=adamw))
    result = {
        f"time of LayerNorm / RMSNorm, width {dim}": norm_ratio(dim, rows=2048, rounds=20 * rounds)
        for dim in (128, 512)
    }
    result |= attention_ratios(rounds, threads)
    result |= perplexity_ratios(task, steps)
    for size, model in SIZES.items():
        by_length = cache_ratios(replace(task, config=replace(tiny, model=model)), rounds)
        result |= {f"speed by the KV cache, {size}, {x} tokens": by_length[x] for x in by_length}
    rows = [[name, f"{ratio:.2f}"] for name, ratio in result.items()]
    show(result, as_json, lambda: aligned(rows), hardware(threads))


if __name__ == "__main__":
    run(app)
