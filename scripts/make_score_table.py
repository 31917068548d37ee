"""Refresh the rows of the score table in README.md from run folders.

A run is trained by `tformer train` and scored by `tformer eval RUN --bleu`; each of its test sets
gives a row. Rows of other runs stay as they are.

Example: python scripts/make_score_table.py runs/demo runs/multi30k
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open

from tformer_cli.checkpoint.layout import MODEL_FILE
from tformer_cli.checkpoint.state import load_state
from tformer_cli.errors import CheckpointError
from tformer_cli.run_directory import RunDirectory, write_text

README = Path(__file__).parent.parent / "README.md"
HEADER = (
    "| config | test set | BLEU | signature | search | minutes | hardware | parameters |",
    "|---|---|---|---|---|---|---|---|",
)


def rows(run: RunDirectory) -> list[str]:
    """Return a row for each test set that the run was scored on.

    Raises:
        CheckpointError: the run has no checkpoint or no BLEU.
    """
    last, best = run.pointed("last"), run.pointed("best")
    if last is None or best is None:
        raise CheckpointError(str(run.path), "is no finished run", remedy="train it first")
    state = load_state(last)
    environment = state.environment
    threads = environment["threads"]
    hardware = f"{threads} thread{'' if threads == '1' else 's'}, {environment['device']}"
    minutes = f"{state.seconds / 60:.0f}"
    parameters = f"{num_parameters(best / MODEL_FILE) / 1e6:.1f} M"
    config = f"[{run.path.name}](configs/{run.path.name}.yaml)"
    found = []
    for file in sorted(run.eval.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        for score in content["scores"]:
            if score["name"] == "BLEU" and file.stem != "valid":
                test_set = f"{file.stem}, {score['num_sentences']:,} sentences"
                signature = f"`{score['signature']}`".replace("|", "\\|")
                cells = (config, test_set, f"{score['score']:.2f}", signature)
                more = (search(content["decoding"]), minutes, hardware, parameters)
                found.append(f"| {' | '.join((*cells, *more))} |")
    if not found:
        raise CheckpointError(
            str(run.path), "has no BLEU of a test set", remedy=f"tformer eval {run.path} --bleu"
        )
    return found


def search(decoding: dict[str, object]) -> str:
    """Say in a word or two how a text was translated."""
    return "greedy" if decoding["kind"] == "greedy" else f"beam {decoding['size']}"


def num_parameters(file: Path) -> int:
    """Count the weights in a safetensors file without loading them."""
    total = 0
    with safe_open(file, framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            size = 1
            for length in tensors.get_slice(name).get_shape():
                size *= length
            total += size
    return total


def with_rows(readme: str, fresh: Iterable[str]) -> str:
    """Return the README's text with rows put in place of those of the same config, or added."""
    before, _, rest = readme.partition("<!-- scores -->\n")
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


if __name__ == "__main__":
    try:
        fresh = [row for run in sys.argv[1:] for row in rows(RunDirectory(Path(run)))]
    except CheckpointError as error:
        sys.exit(str(error))
    write_text(README, with_rows(README.read_text(encoding="utf-8"), fresh))
