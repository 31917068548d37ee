"""Reports of trainings that never were, as lines of metrics.jsonl."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tformer_cli.storage.run_directory import RunDirectory

Report = dict[str, Any]


def training(step: int, *, nll: float = 2.0, num_tokens: int = 500, seconds: float = 0.5) -> Report:
    return {
        "kind": "train",
        "step": step,
        "epoch": 0,
        "loss": nll + 0.7,
        "perplexity": math.exp(nll),
        "accuracy": 0.3,
        "learning_rate": 1e-3 / step,
        "grad_norm": 0.5 + 1 / step,
        "tokens_per_second": num_tokens / seconds,
        "seconds": seconds,
    }


def validation(step: int, *, loss: float = 1.5, bleu: float = 20.0) -> Report:
    return {
        "kind": "valid",
        "step": step,
        "loss": loss,
        "perplexity": math.exp(loss),
        "accuracy": 0.4,
        "bleu": bleu,
        "signature": "nrefs:1",
        "is_best": True,
    }


def written(folder: Path, reports: Iterable[Report], *, cut: str = "") -> RunDirectory:
    """A run with these reports, and the beginning of another."""
    run = RunDirectory(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{json.dumps(report)}\n" for report in reports)
    run.metrics_file.write_text(lines + cut)
    return run
