"""Single choices side by side: two norms, two ways to attend, optimisers and the warm-up."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from apart import printed
from torch import Tensor
from trainers.contestants import Ours, Task

from tformer_cli.config.schema.training import CosineSchedule
from tformer_cli.model.blocks.attention import kernel_attend, naive_attend
from tformer_cli.model.blocks.attention_mask import AttentionMask
from tformer_cli.model.blocks.residual import build_norm
from tformer_cli.process import ENVIRONMENT
from tformer_cli.training.optim import build_schedule

CPU = torch.device("cpu")
WAYS = {"fast": kernel_attend, "naive": naive_attend}
NUM_HEADS, HEAD_DIM = 4, 32
# Momentum and rates of plain gradient descent; the best of them counts.
MOMENTUM = 0.9
SGD_RATES = (0.03, 0.1, 0.3, 1.0)


class Cost(NamedTuple):
    """What a forward and a backward pass take.

    Attributes:
        seconds: the median of some.
        mib: most memory that they take beside queries, keys, values and gradients, in MiB.
    """

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


def attention_cost(way: str, length: int, threads: int) -> Cost:
    """Return what attention of a sequence to itself takes, causal, in a process of its own."""
    words = way, str(length), str(threads)
    found = printed("members.parts.attend_apart", *words, environment=ENVIRONMENT)
    return Cost(*json.loads(found))


def attend_apart(way: str, length: str, threads: str) -> None:
    """Print the seconds and the MiB of attention."""
    torch.set_num_threads(int(threads))
    shape = (1, NUM_HEADS, int(length), HEAD_DIM)
    queries, keys, values = (torch.randn(shape, requires_grad=True) for _ in range(3))

    def passes(attend: Callable[..., Tensor]) -> float:
        start = time.perf_counter()
        attend(queries, keys, values, AttentionMask(is_causal=True), 0.0).sum().backward()
        return time.perf_counter() - start

    passes(WAYS[way])
    # Linux forgets the peak of the imports, and begins anew with what is held now.
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    seconds = median(passes(WAYS[way]) for _ in range(5))
    print(json.dumps([seconds, (status("VmHWM") - before) / 2**10]))


def status(field: str) -> int:
    """Return a line of what Linux says of this process, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1])


def losses(task: Task, steps: int) -> dict[str, float]:
    """Return the validation loss after some steps of each way to learn, in nats a token."""
    warm, cold = (lasting(task, steps, warmup_steps) for warmup_steps in (max(1, steps // 6), 1))
    found = {"adamw": loss(Ours(warm), steps), "adamw without warm-up": loss(Ours(cold), steps)}
    for rate in SGD_RATES:
        found[f"sgd {rate:g}"] = loss(with_plain_descent(Ours(warm), rate), steps)
    return found


def lasting(task: Task, steps: int, warmup_steps: int) -> Task:
    """Return the task with a learning rate that rises and falls within some steps."""
    schedule = CosineSchedule(warmup_steps=warmup_steps)
    training = replace(task.config.training, schedule=schedule, max_steps=steps)
    return replace(task, config=replace(task.config, training=training))


def with_plain_descent(contestant: Ours, rate: float) -> Ours:
    """Let a contestant learn by gradient descent with momentum, from a peak rate on."""
    train_state, training = contestant.train_state, contestant.task.config.training
    contestant.train_state = replace(
        train_state,
        optimizer=torch.optim.SGD(train_state.model.parameters(), rate, momentum=MOMENTUM),
        schedule=build_schedule(training.schedule, peak=rate, max_steps=training.max_steps),
    )
    return contestant


def loss(contestant: Ours, steps: int) -> float:
    """Return the validation loss of a contestant after some steps."""
    for _ in islice(contestant.steps(contestant.batches()), steps):
        pass
    return contestant.valid_loss()
