"""Refresh the rows of the score table in docs/explanation/quality.md from run folders."""

import json
import shlex
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from safetensors import safe_open

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.decoding import search_in_words
from tformer_cli.errors import CheckpointError, quantity
from tformer_cli.export.card import table_code
from tformer_cli.storage.atomic import write_text
from tformer_cli.storage.run_directory import MODEL_FILE, RunDirectory
from tformer_cli.storage.state import load_progress

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "quality.md"
HEADER = (
    "| config | test set | BLEU | signature | search | minutes | hardware | parameters |",
    "|---|---|---|---|---|---|---|---|",
)


def rows(runs: Sequence[RunDirectory]) -> list[str]:
    """Return a row for each test set that the runs, one a seed, were scored on.

    Raises:
        CheckpointError: a run has no checkpoint or no BLEU, two were scored otherwise, or they
            differ by something else than the seed.
    """
    first = runs[0]
    states = [load_progress(checkpoint(each, "last")) for each in runs]
    seeds: set[str] = set()
    for each, state in zip(runs, states, strict=True):
        seed = state.settings["seed"]
        if seed in seeds or state.settings | {"seed": ""} != states[0].settings | {"seed": ""}:
            what = f"is not the config of {first.path} with another seed"
            raise CheckpointError(str(each.path), what, remedy="leave out the comma before it")
        seeds.add(seed)
    environment = states[0].environment
    hardware = f"{quantity(int(environment['threads']), 'thread')}, {environment['device']}"
    minutes = f"{statistics.mean(state.seconds for state in states) / 60:.0f}"
    parameters = f"{num_parameters(checkpoint(first, 'best') / MODEL_FILE) / 1e6:.1f} M"
    config = first.path.name
    results = [bleu(each) for each in runs]
    for each, result in zip(runs, results, strict=True):
        if {name: how(*x) for name, x in result.items()} != {
            name: how(*x) for name, x in results[0].items()
        }:
            raise CheckpointError(
                str(each.path),
                "was scored otherwise",
                got=f"another test set, signature or search than {first.path}",
                remedy="score both by the same `tformer eval`",
            )
    table = []
    for name, (score, decoding) in results[0].items():
        test_set = f"{name}, {score['num_sentences']:,} sentences"
        scores = [result[name][0]["score"] for result in results]
        cells = (config, test_set, in_words(scores), table_code(score["signature"]))
        more = (search_in_words(decoding), minutes, hardware, parameters)
        table.append(f"| {' | '.join((*cells, *more))} |")
    return table


def checkpoint(run: RunDirectory, name: str) -> Path:
    """Return the checkpoint that a pointer of a finished run names.

    Raises:
        CheckpointError: there is none.
    """
    path = run.pointed(name)
    if path is None:
        raise CheckpointError(str(run.path), "is no finished run", remedy="train it first")
    return path


def bleu(run: RunDirectory) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the BLEU of each test set that a run was scored on, and its search.

    Raises:
        CheckpointError: there is none.
    """
    contents = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(run.eval.glob("*.json"))
        if file.stem != "valid"
    }
    scores = {
        name: (score, content["decoding"])
        for name, content in contents.items()
        for score in content["scores"]
        if score["name"] == "BLEU"
    }
    if not scores:
        raise CheckpointError(
            str(run.path),
            "has no BLEU of a test set",
            remedy=shlex.join(["tformer", "eval", str(run.path), "--bleu"]),
        )
    return scores


def how(score: dict[str, Any], decoding: dict[str, Any]) -> tuple[object, ...]:
    """Return what comparable scores have in common."""
    return score["signature"], score["num_sentences"], decoding


def in_words(scores: Sequence[float]) -> str:
    """Return one score, or the mean and the standard deviation of several."""
    if len(scores) == 1:
        return f"{scores[0]:.2f}"
    mean, deviation = statistics.mean(scores), statistics.stdev(scores)
    return f"{mean:.1f} ± {deviation:.1f} ({len(scores)} seeds)"


def num_parameters(file: Path) -> int:
    """Count the parameters of a safetensors file without loading them."""
    total = 0
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            size = 1
            for length in tensors.get_slice(name).get_shape():
                size *= length
            total += size
    return total


def with_rows(page: str, fresh: Iterable[str]) -> str:
    """Return a page with rows that replace those of the same config, or are added."""
    before, _, rest = page.partition("<!-- scores -->\n")
    table, _, after = rest.partition("<!-- end of scores -->\n")
    by_config: dict[str, list[str]] = {}
    for row in table.split("\n")[len(HEADER) : -1]:
        by_config.setdefault(row.split(" | ")[0], []).append(row)
    renewed: dict[str, list[str]] = {}
    for row in fresh:
        renewed.setdefault(row.split(" | ")[0], []).append(row)
    lines = [*HEADER, *(row for group in (by_config | renewed).values() for row in group)]
    text = "".join(f"{line}\n" for line in lines)
    return f"{before}<!-- scores -->\n{text}<!-- end of scores -->\n{after}"


app = new_app(add_completion=False)


@app.command()
def main(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN[,RUN...]",
            help="Run folders; those of one config and several seeds with commas between.",
            show_default=False,
        ),
    ],
) -> None:
    """Refresh the rows of the score table in docs/explanation/quality.md from run folders.

    A run is trained by `tformer train` and scored by `tformer eval RUN --bleu`; each of its test
    sets gives a row. Rows of other runs stay as they are. Runs of one config with several seeds
    share a row, with mean and standard deviation of their scores; the one with the name of the
    config comes first.

    Example: python scripts/make_score_table.py runs/demo runs/multi30k,runs/seed-2,runs/seed-3
    """
    fresh = [
        row
        for seeds in runs
        for row in rows([RunDirectory(Path(path)) for path in seeds.split(",")])
    ]
    write_text(PAGE, with_rows(PAGE.read_text(encoding="utf-8"), fresh))


if __name__ == "__main__":
    run(app)
