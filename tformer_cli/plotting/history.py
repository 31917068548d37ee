"""What a run has reported, as curves over steps, target tokens or hours."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tformer_cli.errors import CheckpointError
from tformer_cli.json_text import parse_json
from tformer_cli.storage.run_directory import RunDirectory

Axis = Literal["step", "tokens", "hours"]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class History:
    """The course of one run.

    Attributes:
        run: the run folder.
        curves: points (x, y) in the order of their reports, by the name of what y is: train_loss,
            valid_loss (nats a target token, without label smoothing), valid_bleu, learning_rate,
            grad_norm, tokens_per_second. What was never reported is not there.
    """

    run: Path
    curves: dict[str, list[Point]]


def read_history(run: RunDirectory, by: Axis) -> History:
    """Read the reports in metrics.jsonl.

    Args:
        run: the run folder.
        by: what x is: optimiser steps, target tokens or hours, the last two counted over the
            optimiser steps up to the report.

    Raises:
        CheckpointError: there is no such run, no report in it, or a line that is none.
    """
    if not run.path.is_dir():
        raise CheckpointError(
            str(run.path),
            "no such run folder",
            remedy="name the folder of a run, such as runs/demo",
        )
    curves: dict[str, list[Point]] = {}
    num_tokens = 0
    seconds = 0.0
    for line, report in _reports(run.metrics_file):
        try:
            if report["kind"] == "train":
                # Their quotient was reported, so rounding gives back the count.
                num_tokens += round(report["tokens_per_second"] * report["seconds"])
                seconds += report["seconds"]
            x = {"step": report["step"], "tokens": num_tokens, "hours": seconds / 3600}[by]
            for name, y in _values(report).items():
                curves.setdefault(name, []).append((x, y))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(run.metrics_file, line) from error
    if not curves:
        raise CheckpointError(
            str(run.metrics_file),
            "holds no report of a training",
            remedy="wait for the first one, or name another run",
        )
    return History(run.path, curves)


def _reports(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the reports with their line numbers, less a last one that a kill cut short.

    Raises:
        CheckpointError: another line is not JSON.
    """
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line]
    reports = []
    for number, line in lines:
        try:
            reports.append((number, parse_json(line)))
        except ValueError as error:
            if number != lines[-1][0]:
                raise _damaged(file, number) from error
    return reports


def _values(report: dict[str, Any]) -> dict[str, float]:
    """Return what a report says, by the names of the curves; some kinds have nothing to draw."""
    match report["kind"]:
        case "train":
            return {
                # The reported loss is smoothed; this one compares with that of validation.
                "train_loss": math.log(report["perplexity"]),
                "learning_rate": report["learning_rate"],
                "grad_norm": report["grad_norm"],
                "tokens_per_second": report["tokens_per_second"],
            }
        case "valid":
            # A masked encoder is judged by its loss alone.
            bleu = {"valid_bleu": report["bleu"]} if "bleu" in report else {}
            return {"valid_loss": report["loss"], **bleu}
        case _:
            return {}


def _damaged(file: Path, line: int) -> CheckpointError:
    return CheckpointError(
        f"{file}:{line}", "is no report of a training", remedy="remove the line to do without it"
    )
