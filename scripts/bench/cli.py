"""Options and endings that the command lines of the benchmarks share."""

import contextlib
import json
import signal
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from flops import CPU
from harness import CONDITIONS

from tformer_cli.device import hardware_name
from tformer_cli.errors import Interrupted, UsageError

ROOT = Path(__file__).resolve().parents[2]
ALL_CONDITIONS = ",".join(CONDITIONS)
MULTI30K = ROOT / "data" / "multi30k"

Folder = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the trainings.")]
Data = Annotated[Path, typer.Option(metavar="DIR", help="Multi30k.", show_default="data/multi30k")]
Rounds = Annotated[int, typer.Option(min=1, help="Number of turns of each.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of each.")]
Conditions = Annotated[
    str, typer.Option(help="default: settings of nobody; tuned: those of tformer, for all.")
]
VocabSize = Annotated[int, typer.Option(min=32, help="Vocabulary size, shared by the languages.")]
InitStd = Annotated[
    float, typer.Option(min=0.0, help="Standard deviation of Marian's initial weights.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def names_in(option: str, text: str, names: Collection[str], noun: str) -> list[str]:
    """Return comma-separated names, each once."""
    words = list(dict.fromkeys(text.split(",")))
    for word in words:
        if word not in names:
            raise UsageError(
                option, f"no such {noun}", got=word, remedy=f"choose from: {', '.join(names)}"
            )
    return words


def numbers_in(option: str, text: str, kind: Callable[[str], Any] = int) -> list[Any]:
    """Return comma-separated numbers, each once."""
    words, noun = text.split(","), "whole numbers" if kind is int else "numbers"
    try:
        if kind is int and not all(word.isdecimal() for word in words):
            raise ValueError
        return list(dict.fromkeys(map(kind, words)))
    except ValueError:
        raise UsageError(option, f"must be {noun} with commas between", got=text) from None


@contextlib.contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Turn Ctrl-C into an error of one line; the trainings of the folder resume."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            str(folder), "interrupted", signal=signal.SIGINT, remedy="re-run the command to resume"
        ) from None


def show(result: object, as_json: bool, table: Callable[[], str], *notes: str) -> None:
    """Print a result as JSON, or as a table with lines below it."""
    typer.echo(json.dumps(result, indent=2) if as_json else "\n".join([table(), *notes]))


def rounds_on(rounds: int, threads: int) -> str:
    """Return how often something was measured, and on what."""
    return f"{rounds} rounds, {hardware(threads)}"


def hardware(threads: int) -> str:
    """Return what a benchmark ran on."""
    return f"{threads} threads, torch {torch.__version__}, {hardware_name(CPU)}"
