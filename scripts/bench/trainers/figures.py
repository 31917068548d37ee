"""What the turns of the contestants of train.py come to, and what the machine could do at most."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from rounded import median_and_range
from trainers.contestants import CONTESTANTS
from trainers.worker import Measurement

from tformer_cli.config.schema.model import EncoderDecoderConfig
from tformer_cli.model.inspection.flops import count_flops

# What the machine's rate of matrix products is taken with.
GEMM_SIZE = 2048
GEMM_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of everybody.

    Attributes:
        turns: by contestant; with its precision where that is not float32.
        gemm_flops: floating-point operations a second in products of large float32 matrices.
    """

    turns: dict[str, Measurement]
    gemm_flops: float

    def __str__(self) -> str:
        speeds = (f"{name} {turn.tokens_per_second:,.0f}" for name, turn in self.turns.items())
        return f"{', '.join(speeds)} target tokens/s; GEMM {self.gemm_flops / 1e9:,.0f} GFLOP/s"


def entry_name(name: str, precision: str) -> str:
    """Return what the turns of a contestant are kept under."""
    return name if precision == "float32" else f"{name} {precision}"


def summary(rounds: Sequence[Round], flops_per_token: float) -> dict[str, Any]:
    """Return the medians over some rounds, and under `rounds` the figures of each of them.

    Args:
        rounds: at least one.
        flops_per_token: floating-point operations that a target token takes.
    """

    def speeds(entry: str) -> list[float]:
        return [played.turns[entry].tokens_per_second for played in rounds]

    def best(name: str) -> str:
        entries = [entry for entry in rounds[0].turns if entry.split()[0] == name]
        return max(entries, key=lambda entry: median(speeds(entry)))

    def ratios(one: str, other: str) -> list[float]:
        return [a / b for a, b in zip(speeds(one), speeds(other), strict=True)]

    by_round = {
        **{name: speeds(name) for name in CONTESTANTS},
        "ours_best": speeds(best("ours")),
        "hf_best": speeds(best("hf")),
        "ratio_hf": ratios("ours", "hf"),
        "ratio_hf_best": ratios(best("ours"), best("hf")),
        "ratio_textbook": ratios("ours", "textbook"),
    }
    ours = [played.turns["ours"] for played in rounds]
    num_tokens = sum(turn.num_tokens for turn in ours)
    return {
        **{name: median(figures) for name, figures in by_round.items()},
        "rounds": by_round,
        "gemm_gflops": median(played.gemm_flops for played in rounds) / 1e9,
        "gemm_share": median(
            speed * flops_per_token / played.gemm_flops
            for speed, played in zip(speeds("ours"), rounds, strict=True)
        ),
        "padding": 1 - num_tokens / sum(turn.num_positions for turn in ours),
        "page_faults": sum(turn.page_faults for turn in ours) / sum(turn.steps for turn in ours),
        "rss_mib": {name: rounds[-1].turns[name].rss_mib for name in CONTESTANTS},
    }


def flops_per_target_token(
    model: EncoderDecoderConfig,
    vocab_size: int,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
) -> float:
    """Return the floating-point operations of training that a target token takes on average.

    Tables of attention count as a whole, whatever causality hides.

    Args:
        model: its sizes.
        vocab_size: of the target.
        source_lengths: (n,) tokens of each source, `</s>` included.
        target_lengths: (n,) likewise.
    """
    # Stores keep lengths in small integers, whose products would not fit.
    source, target = source_lengths.astype(np.int64), target_lengths.astype(np.int64)
    needed = count_flops(model, vocab_size).training(source, target)
    return float(np.sum(needed) / np.sum(target))


def gemm_flops() -> float:
    """Return the most operations a second that a product of large matrices reaches here."""
    one, other, product = torch.rand(3, GEMM_SIZE, GEMM_SIZE)
    seconds, begun = [], time.perf_counter()
    while not seconds or time.perf_counter() - begun < GEMM_SECONDS:
        started = time.perf_counter()
        torch.mm(one, other, out=product)
        seconds.append(time.perf_counter() - started)
    return 2 * GEMM_SIZE**3 / min(seconds)


# Title, and the figure of a column as text.
ROWS = (
    ("target tokens/s: tformer", lambda size: median_and_range(size["rounds"]["ours"])),
    ("  at its best", lambda size: median_and_range(size["rounds"]["ours_best"])),
    ("  transformers' Marian", lambda size: median_and_range(size["rounds"]["hf"])),
    ("  at its best", lambda size: median_and_range(size["rounds"]["hf_best"])),
    ("  textbook", lambda size: median_and_range(size["rounds"]["textbook"])),
    ("tformer / Marian", lambda size: median_and_range(size["rounds"]["ratio_hf"])),
    ("  each at its best", lambda size: median_and_range(size["rounds"]["ratio_hf_best"])),
    ("tformer / textbook", lambda size: median_and_range(size["rounds"]["ratio_textbook"])),
    ("share of GEMM peak", lambda size: f"{size['gemm_share']:.0%}"),
    ("padding", lambda size: f"{size['padding']:.1%}"),
    ("page faults a step", lambda size: f"{size['page_faults']:,.0f}"),
    ("peak MiB: tformer", lambda size: f"{size['rss_mib']['ours']:,.0f}"),
    ("  transformers' Marian", lambda size: f"{size['rss_mib']['hf']:,.0f}"),
    ("  textbook", lambda size: f"{size['rss_mib']['textbook']:,.0f}"),
)
QUALITY_ROWS = (
    ("valid loss: tformer", lambda size: f"{size['valid_loss']['ours']:.4f}"),
    ("  transformers' Marian", lambda size: f"{size['valid_loss']['hf']:.4f}"),
)


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the figures of each size and condition as lines to read, a column each."""
    validated = all(size["valid_loss"] for size in results.values())
    lines = [("", *results)]
    for title, figure in ROWS + (QUALITY_ROWS if validated else ()):
        lines.append((title, *(figure(size) for size in results.values())))
    return "\n".join(
        f"{title:<26}" + "".join(f"{cell:>24}" for cell in row) for title, *row in lines
    )
