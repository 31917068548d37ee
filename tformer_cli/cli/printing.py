"""What a command prints for a person: lines, warnings, progress, tables and the next command."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from tformer_cli.cli.options import OF_ARGUMENTS, in_options, with_options
from tformer_cli.cli.options import message as text_of
from tformer_cli.errors import Problem, printable
from tformer_cli.storage.atomic import json_bytes
from tformer_cli.terminal import colored

if TYPE_CHECKING:
    from tqdm import tqdm

    from tformer_cli.config.schema.config import Config

# Those of the command that runs, by the arguments of the library.
OPTIONS_OF_COMMAND: ContextVar[Mapping[str, str]] = ContextVar("options", default=OF_ARGUMENTS)


def tell(text: str) -> None:
    """Print lines on stdout; control characters of file names are escaped."""
    # A surrogate stands for a byte that is not UTF-8, and is printed as that byte.
    typer.echo("".join(c if c == "\n" or "\udc80" <= c <= "\udcff" else printable(c) for c in text))


def tell_json(content: object, *, indent: int | None = 2) -> None:
    """Print a JSON object on stdout, in UTF-8 whatever the locale and the names of files have."""
    typer.echo(json_bytes(content, indent=indent))


def tell_stderr(text: str) -> None:
    """Print a line on stderr, above a progress bar."""
    _print_above_bars(in_options(text))


def warn(problem: Problem) -> None:
    """Print a warning on stderr, above a progress bar."""
    _print_above_bars(marked(problem, "yellow"))


def marked(problem: Problem, color: str) -> str:
    """Return the message of a problem for stderr; a terminal gets what it is about in a color."""
    where, colon, what = text_of(with_options(problem, OPTIONS_OF_COMMAND.get())).partition(": ")
    return colored(where, color, sys.stderr) + colon + what


def _print_above_bars(text: str) -> None:
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):
        typer.echo(text, err=True)


def extend_bar(bar: "tqdm[NoReturn]", count: int) -> None:
    """Add to what a progress bar counts up to."""
    bar.total = (bar.total or 0) + count
    bar.refresh()


def begin_bar(bar: "tqdm[NoReturn]", num_done: int, total: int) -> None:
    """Let a progress bar begin behind what is done already."""
    bar.reset(total)
    bar.initial = bar.n = num_done
    bar.refresh()


def relative(file: Path) -> Path:
    """Return a file relative to the working directory, if it is in there."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


def suggest(*words: object) -> None:
    """Print the command to run next on stderr, given without `tformer`."""
    typer.echo(f"next: {shlex.join(['tformer', *map(str, words)])}", err=True)


def suggest_use(config: "Config", run: Path, *options: object) -> None:
    """Suggest to evaluate a model that translates, or to translate if there is no test set."""
    if config.model.kind == "masked_encoder":
        return
    if config.data.test:
        suggest("eval", run, *options)
    else:
        suggest_translation(config, run, *options)


def suggest_translation(config: "Config", run: Path, *options: object) -> None:
    """Suggest to translate, into the first target language of a model that needs one."""
    data = config.data
    to = ("--to", data.targets[0]) if data.has_target_tags else ()
    suggest("translate", run, *to, *options)


def table(rows: Iterable[Sequence[str]], align: str) -> str:
    """Return rows as text; `align` has < or > for each column, for flush left or right."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in cells
    )
