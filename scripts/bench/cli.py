"""Options and endings that the command lines of the benchmarks share."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

import torch
import typer
from flops import CPU
from harness import ROOT

from tformer_cli.device import hardware_name
from tformer_cli.errors import UsageError

MULTI30K = ROOT / "data" / "multi30k"

Folder = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the trainings.")]
Data = Annotated[Path, typer.Option(metavar="DIR", help="Multi30k.", show_default="data/multi30k")]
Rounds = Annotated[int, typer.Option(min=1, help="Number of turns of each.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of each.")]
VocabSize = Annotated[int, typer.Option(min=32, help="Vocabulary size, shared by the languages.")]
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


def numbers_in(option: str, text: str) -> list[int]:
    """Return comma-separated whole numbers, each once."""
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise UsageError(option, "must be whole numbers with commas between", got=text)
    return list(dict.fromkeys(map(int, words)))


def show(result: object, as_json: bool, table: Callable[[], str], *notes: str) -> None:
    """Print a result as JSON, or as a table with lines below it."""
    typer.echo(json.dumps(result, indent=2) if as_json else "\n".join([table(), *notes]))


def rounds_on(rounds: int, threads: int) -> str:
    """Return how often something was measured, and on what."""
    return f"{rounds} rounds, {hardware(threads)}"


def hardware(threads: int) -> str:
    """Return what a benchmark ran on."""
    return f"{threads} threads, torch {torch.__version__}, {hardware_name(CPU)}"
