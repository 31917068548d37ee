#!/usr/bin/env python
"""Measure time and memory of `tformer translate` for files of different lengths, start included.

The lines are those of the run's test text, repeated. A file of one line is a cold start. Memory is
that of all processes together, and should not depend on the number of lines. CTranslate2 alone is a
program of some lines that reads and writes the same files.
"""

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from cli import AsJson, Rounds, rounds_on, show
from decode import pairs_to_translate
from harness import columns_table, median_and_range, play_rounds, ratios, watched

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import load_config
from tformer_cli.errors import TrainingError
from tformer_cli.process import num_threads
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import find_model
from tformer_cli.translate.backend import checked_export

LINES = (1, 1_000, 10_000)
TITLES = {
    "auto": "tformer",
    "native": "tformer --backend native",
    "ctranslate2": "CTranslate2 alone",
}
ALONE = """
import sys
import ctranslate2, sentencepiece
folder, source, target, beam = sys.argv[1:]
model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/shared.model")
translator = ctranslate2.Translator(folder, inter_threads=THREADS, intra_threads=1)
lines = open(source, encoding="utf-8").read().splitlines()
results = translator.translate_batch(
    model.encode(lines, out_type=str), beam_size=int(beam), max_batch_size=64, max_input_length=0
)
with open(target, "w", encoding="utf-8") as output:
    output.writelines(model.decode(result.hypotheses[0]) + "\\n" for result in results)
"""


def measure(
    folder: Path,
    counts: Sequence[int],
    rounds: int,
    *,
    beam: int = 1,
    engines: Sequence[str] = tuple(TITLES),
) -> dict[str, Any]:
    """Let the engines translate a file of each number of lines, in turns.

    Returns the seconds of each round, how many times as fast the first engine is as each other one,
    and the peak memory.
    """
    config = load_config(RunDirectory(folder).config_file)
    lines = [source for source, _ in pairs_to_translate(config)]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "source", Path(name) / "target"
        for count in counts:
            text = itertools.islice(itertools.cycle(lines), count)
            source.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
            memory: dict[str, float] = {}

            def speed(engine: str, count: int = count, memory: dict[str, float] = memory) -> float:
                started = time.perf_counter()
                peak = translate(command(engine, folder, source, target, beam))
                seconds = time.perf_counter() - started
                memory[engine] = max(memory.get(engine, 0), peak / 2**20)
                translated = target.read_bytes().count(b"\n")
                if translated != count:
                    raise TrainingError(str(target), "has lost lines", got=f"{translated:,}")
                return count / seconds

            speeds = play_rounds(engines, rounds, speed, "lines/s")
            first = speeds[engines[0]]
            results[str(count)] = {
                "seconds": {name: [count / each for each in speeds[name]] for name in speeds},
                "ratios": {name: ratios(first, speeds[name]) for name in engines[1:]},
                "peak_mib": memory,
            }
    return results


def command(engine: str, folder: Path, source: Path, target: Path, beam: int) -> list[str]:
    """Return the command line of an engine."""
    if engine == "ctranslate2":
        export = checked_export(find_model(RunDirectory(folder)), "float32")
        code = ALONE.replace("THREADS", str(num_threads()))
        return [sys.executable, "-c", code, str(export), str(source), str(target), str(beam)]
    words = [sys.executable, "-m", "tformer_cli", "translate", str(folder), "--backend", engine]
    return [*words, "--input", str(source), "--output", str(target), "--beam", str(beam)]


def translate(words: Sequence[str]) -> int:
    """Run a command; return its peak memory in bytes."""
    with (
        subprocess.Popen(words, stderr=subprocess.DEVNULL) as process,
        watched(process.pid) as samples,
    ):
        code = process.wait()
    if code:
        raise TrainingError(" ".join(words[:8]), "has failed", got=f"exit code {code}")
    return max(samples)


def cells(result: dict[str, Any]) -> dict[str, str]:
    """Return the column of a file."""
    columns = {"seconds:": result["seconds"], "times as fast tformer is as": result["ratios"]}
    return {
        f"{title} {TITLES[engine]}": median_and_range(numbers)
        for title, by_engine in columns.items()
        for engine, numbers in by_engine.items()
    } | {f"peak MiB: {TITLES[name]}": f"{mib:,.0f}" for name, mib in result["peak_mib"].items()}


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
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Measure time and memory of `tformer translate` for files of different lengths.

    Example: python scripts/bench/file_length.py runs/decode/tiny-1500 --lines 1
    """
    with tempfile.TemporaryDirectory() as name:
        # The first translation writes the export.
        source = Path(name) / "source"
        source.write_text("\n", encoding="utf-8")
        translate(command("auto", folder, source, Path(name) / "target", beam))
    results = measure(folder, counts or LINES, rounds, beam=beam)
    columns = {f"{int(count):,} lines": cells(result) for count, result in results.items()}
    note = f"whole processes; {rounds_on(rounds, num_threads())}"
    show(results, as_json, lambda: columns_table("", columns), note)


if __name__ == "__main__":
    run(app)
