#!/usr/bin/env python
"""Measure time and memory of `tformer translate` for files of different lengths, start included.

The lines are those of the run's test text, repeated. A file of one line is a cold start. Memory is
that of all processes together, and should not depend on the number of lines. CTranslate2 alone is a
program of some lines that reads and writes the same files.
"""

import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from cli import AsJson, Rounds, numbers_in, rounds_on, show
from decode import pairs_to_translate
from harness import Command, columns_table, median_and_range, play_rounds, times_as_fast

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.load import load_config
from tformer_cli.errors import TrainingError
from tformer_cli.process import num_threads
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import find_model
from tformer_cli.translate.backend import checked_export

NATIVE = "tformer --backend native"
TITLES = {"auto": "tformer", "native": NATIVE, "ctranslate2": "CTranslate2 alone"}
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
    folder: Path, count: int, rounds: int, beam: int, engines: Sequence[str] = tuple(TITLES)
) -> dict[str, Any]:
    """Let engines translate a file of so many lines, in turns.

    Returns the lines per second of each round, and the peak memory of each engine in MiB.
    """
    config = load_config(RunDirectory(folder).config_file)
    lines = [source for source, _ in pairs_to_translate(config)]
    memory = dict.fromkeys(engines, 0.0)
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "source", Path(name) / "target"
        text = itertools.islice(itertools.cycle(lines), count)
        source.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")

        def speed(engine: str) -> float:
            done = Command(*words_of(engine, folder, source, target, beam))
            memory[engine] = max(memory[engine], done.peak_mib)
            translated = target.read_bytes().count(b"\n")
            if translated != count:
                raise TrainingError(str(target), "has lost lines", got=f"{translated:,}")
            return count / done.seconds

        # The first translation writes the export.
        Command(*words_of(engines[0], folder, source, target, beam))
        speeds = play_rounds(engines, rounds, speed, "lines/s")
    return {"lines_per_second": speeds, "peak_mib": memory}


def words_of(engine: str, folder: Path, source: Path, target: Path, beam: int) -> list[str]:
    """Return the command line of an engine."""
    if engine == "ctranslate2":
        export = checked_export(find_model(RunDirectory(folder)), "float32")
        code = ALONE.replace("THREADS", str(num_threads()))
        return [sys.executable, "-c", code, str(export), str(source), str(target), str(beam)]
    words = [sys.executable, "-m", "tformer_cli", "translate", str(folder), "--backend", engine]
    return [*words, "--input", str(source), "--output", str(target), "--beam", str(beam)]


def cells(count: int, result: dict[str, Any]) -> dict[str, str]:
    """Return the column of a file."""
    speeds, memory = result["lines_per_second"], result["peak_mib"]
    seconds = {name: [count / each for each in speeds[name]] for name in speeds}
    return (
        {f"seconds: {TITLES[name]}": median_and_range(seconds[name]) for name in speeds}
        | times_as_fast(speeds, TITLES)
        | {f"peak MiB: {TITLES[name]}": f"{mib:,.0f}" for name, mib in memory.items()}
    )


app = new_app(add_completion=False)


@app.command()
def file_length(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    lines: Annotated[str, typer.Option(help="Lines of each file.")] = "1,1000,10000",
    beam: Annotated[int, typer.Option(min=1, help="Beam size; 1 is greedy search.")] = 1,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Measure time and memory of `tformer translate` for files of different lengths.

    Example: python scripts/bench/file_length.py runs/decode/tiny-1500 --lines 1
    """
    counts = numbers_in("--lines", lines)
    results = {count: measure(folder, count, rounds, beam) for count in counts}
    columns = {f"{count:,} lines": cells(count, result) for count, result in results.items()}
    note = f"whole processes; {rounds_on(rounds, num_threads())}"
    show(results, as_json, lambda: columns_table("", columns), note)


if __name__ == "__main__":
    run(app)
