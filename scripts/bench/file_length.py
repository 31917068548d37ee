#!/usr/bin/env python
"""Measure memory and time of `tformer translate` for longer and longer files.

The lines are those of the run's test text, repeated. Memory is that of all its processes together,
and should not depend on the number of lines.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from cli import AsJson
from decode_models import pairs_to_translate
from harness import watched

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import load_config
from tformer_cli.errors import TrainingError
from tformer_cli.storage.run_directory import RunDirectory

LINES = (1_000, 10_000, 100_000)


def measure(folder: Path, counts: Sequence[int], beam: int) -> Iterator[dict[str, Any]]:
    """Translate a file of each number of lines; yield lines, peak memory and seconds."""
    config = load_config(RunDirectory(folder).config_file)
    lines = [source for source, _ in pairs_to_translate(config)]
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "source", Path(name) / "target"
        for count in counts:
            text = itertools.islice(itertools.cycle(lines), count)
            source.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
            started = time.perf_counter()
            memory = translate(folder, source, target, beam)
            seconds = time.perf_counter() - started
            translated = target.read_bytes().count(b"\n")
            if translated != count:
                raise TrainingError(str(target), "has lost lines", got=f"{translated:,}")
            yield {"lines": count, "peak_mib": memory / 2**20, "seconds": seconds}


def translate(folder: Path, source: Path, target: Path, beam: int) -> int:
    """Translate a file by the command line; return its peak memory in bytes."""
    command = [sys.executable, "-m", "tformer_cli", "translate", str(folder)]
    command += ["--input", str(source), "--output", str(target), "--beam", str(beam)]
    with (
        subprocess.Popen(command, stderr=subprocess.DEVNULL) as process,
        watched(process.pid) as samples,
    ):
        code = process.wait()
    if code:
        raise TrainingError(" ".join(command), "has failed", got=f"exit code {code}")
    return max(samples)


app = new_app(add_completion=False)


@app.command()
def file_length(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    counts: Annotated[
        list[int] | None,
        typer.Option(
            "--lines",
            min=1,
            help="Lines of a file; may be repeated.",
            show_default=", ".join(map(str, LINES)),
        ),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy search.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Measure memory and time of `tformer translate` for files of different lengths.

    With --json each file is an object on a line of its own.

    Example: python scripts/bench/file_length.py runs/decode/tiny-1500 --lines 1000
    """
    for row in measure(folder, counts or LINES, beam):
        lines, memory, seconds = row.values()
        text = f"{lines:>9,} lines   peak {memory:6,.0f} MiB   {seconds:7,.1f} s"
        typer.echo(json.dumps(row) if as_json else text)


if __name__ == "__main__":
    run(app)
