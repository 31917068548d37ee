#!/usr/bin/env python
"""Measure single components: norms, attention kernels, optimizers, warm-up."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import typer
from ablation import BASE
from cli import MULTI30K, AsJson, Data, Rounds, Threads, hardware, show
from harness import log, proc_bytes, subprocess_call
from torch import Tensor
from train import benchmark_config
from train_baselines import Ours, Task

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.training import AdamWConfig
from tformer_cli.corpus.reader import read_texts
from tformer_cli.corpus.store_builder import training_store
from tformer_cli.model.blocks.attention import kernel_attend, naive_attend
from tformer_cli.model.blocks.attention_mask import AttentionMask
from tformer_cli.model.blocks.residual import build_norm
from tformer_cli.process import tune_allocator
from tformer_cli.text.tokenizer import build_tokenizers
from tformer_cli.training.optim import build_schedule

LENGTHS = (512, 1024, 2048, 4096)
ATTENTIONS = {"fast": kernel_attend, "naive": naive_attend}
NUM_HEADS, HEAD_DIM = 4, 32
# Momentum and learning rates of plain gradient descent; the best rate counts.
MOMENTUM = 0.9
SGD_RATES = (0.03, 0.1, 0.3, 1.0)


class Cost(NamedTuple):
    """Forward and backward pass: median seconds, and peak memory besides inputs and gradients."""

    seconds: float
    mib: float


def norm_ratio(dim: int, rows: int, rounds: int) -> float:
    """Return the time of LayerNorm as a multiple of RMSNorm's, forward and backward."""
    norms = [build_norm(kind, dim, 1e-6, bias=True) for kind in ("layer", "rms")]
    states = torch.randn(rows, dim, requires_grad=True)

    def seconds(norm: torch.nn.Module) -> float:
        start = time.perf_counter()
        norm(states).sum().backward()
        return time.perf_counter() - start

    pairs = [(seconds(norms[0]), seconds(norms[1])) for _ in range(rounds + 1)][1:]
    return median(layer / rms for layer, rms in pairs)


def print_attention_cost(kind: str, length: str, threads: str) -> None:
    """Print the cost of causal self-attention."""
    torch.set_num_threads(int(threads))
    shape = (1, NUM_HEADS, int(length), HEAD_DIM)
    queries, keys, values = (torch.randn(shape, requires_grad=True) for _ in range(3))

    def seconds(attend: Callable[..., Tensor]) -> float:
        start = time.perf_counter()
        attend(queries, keys, values, AttentionMask(is_causal=True), 0.0).sum().backward()
        return time.perf_counter() - start

    seconds(ATTENTIONS[kind])
    # Linux resets the peak, which the imports have set, to the memory held now.
    Path("/proc/self/clear_refs").write_text("5")
    before = proc_bytes()["VmRSS"]
    median_seconds = median(seconds(ATTENTIONS[kind]) for _ in range(5))
    print(json.dumps([median_seconds, (proc_bytes()["VmHWM"] - before) / 2**20]))


def attention_ratios(rounds: int, threads: int) -> dict[int, dict[str, float]]:
    """Return time and memory of the formula as multiples of the kernel's, by length."""
    results = {}
    for length in LENGTHS:
        words = (str(length), str(threads))
        turns = [
            {
                kind: Cost(*subprocess_call("parts.print_attention_cost", kind, *words))
                for kind in ATTENTIONS
            }
            for _ in range(rounds)
        ]
        results[length] = {
            "seconds": median(turn["naive"].seconds / turn["fast"].seconds for turn in turns),
            "memory": median(turn["naive"].mib / turn["fast"].mib for turn in turns),
        }
        log(f"{length}: {results[length]}")
    return results


def valid_losses(task: Task, steps: int) -> dict[str, float]:
    """Return the validation loss by optimizer after some steps, in nats per token."""
    warm, cold = (task.with_schedule(steps, warmup) for warmup in (max(1, steps // 6), 1))
    baselines = {"adamw": Ours(warm), "adamw without warm-up": Ours(cold)}
    baselines |= {f"sgd {rate:g}": with_sgd(Ours(warm), rate) for rate in SGD_RATES}
    losses = {}
    for name, baseline in baselines.items():
        for _ in islice(baseline.steps(baseline.batches()), steps):
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


def perplexity_ratios(data: Path, steps: int) -> dict[str, float]:
    """Return validation perplexities as multiples of that of AdamW with warm-up."""
    config = benchmark_config(data, "tiny", vocab_size=8000)
    training = replace(
        config.training, optimizer=AdamWConfig(learning_rate=2.5e-3), batch_tokens=2048
    )
    config = replace(config, model=BASE, training=training)
    tokenizers = build_tokenizers(
        config.tokenizer, lambda: read_texts(config.data.train), config.seed
    )
    store, _ = training_store(config.data, tokenizers)
    losses = valid_losses(Task(config, tokenizers, store, torch.float32), steps)
    log(str(losses))
    best = min(losses[f"sgd {rate:g}"] for rate in SGD_RATES)
    return {
        "sgd": math.exp(best - losses["adamw"]),
        "adamw without warm-up": math.exp(losses["adamw without warm-up"] - losses["adamw"]),
    }


def lines(result: dict[str, Any], steps: int) -> str:
    """Return the ratios as lines."""
    norms = (
        f"LayerNorm / RMSNorm, width {dim}: {ratio:.2f} of the time"
        for dim, ratio in result["layer_norm"].items()
    )
    attentions = (
        f"formula / kernel, {length:,} tokens: {cost['seconds']:.2f} of the time, "
        f"{cost['memory']:.1f} of the memory"
        for length, cost in result["naive_attention"].items()
    )
    optimizers = (
        f"{name} / AdamW, {steps} steps: {ratio:.2f} of the perplexity"
        for name, ratio in result["perplexity"].items()
    )
    return "\n".join([*norms, *attentions, *optimizers])


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
    descent with momentum (the best of four rates) and for AdamW without warm-up.

    Example: python scripts/bench/parts.py --steps 100
    """
    torch.set_num_threads(threads)
    tune_allocator()
    result: dict[str, Any] = {
        "layer_norm": {
            str(dim): norm_ratio(dim, rows=2048, rounds=20 * rounds) for dim in (128, 512)
        },
        "naive_attention": attention_ratios(rounds, threads),
        "perplexity": perplexity_ratios(data, steps),
    }
    show(result, as_json, lambda: lines(result, steps), hardware(threads))


if __name__ == "__main__":
    run(app)
