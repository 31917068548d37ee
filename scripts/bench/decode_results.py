"""Results of decode.py: medians, ratios and tables."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from harness import aligned, median_and_range, ratios

TITLES = {
    "ours": "tformer",
    "ours_bfloat16": "tformer bfloat16",
    "ours_int8": "tformer int8",
    "hf": "transformers' Marian",
    "textbook": "textbook",
    "ctranslate2_float32": "CTranslate2 float32",
    "ctranslate2_int8": "CTranslate2 int8",
    "ctranslate2_backend": "tformer by CTranslate2",
}
# Who translates by the engine of another.
BACKENDS = {"ctranslate2_backend": "ctranslate2_float32"}


def summary(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return medians over the rounds of sentences per second.

    `ratios`: how many times as fast as each other baseline ours is. `backend_ratios`: how many
    times as fast as its engine by itself a backend is. `rounds`: the same of every round.
    """
    names = list(rounds[0])
    by_round = {
        "speeds": {name: [speeds[name] for speeds in rounds] for name in names},
        "ratios": {name: ratios(rounds, "ours", name) for name in names if name != "ours"},
        "backend_ratios": {
            name: ratios(rounds, name, engine)
            for name, engine in BACKENDS.items()
            if name in names and engine in names
        },
    }
    medians = {
        key: {name: median(numbers) for name, numbers in values.items()}
        for key, values in by_round.items()
    }
    return medians.pop("speeds") | medians | {"rounds": by_round}


MEDIANS = {
    "speeds": "sentences/s",
    "ratios": "times as fast tformer is as",
    "backend_ratios": "times as fast as its engine",
}
ROWS = {
    "bleu": ("BLEU", ".2f"),
    "tokens": ("output tokens", ","),
    "sentences": ("sentences", ","),
    "memory_mib": ("peak MiB", ",.0f"),
    "settings": ("fastest setting", ""),
}


def table(size: str, results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a table of one size with a column for each search and mode."""
    cells = [cell for modes in results.values() for cell in modes.values()]
    rows = [[size, *(f"{search} {mode}" for search, modes in results.items() for mode in modes)]]
    for key, title in MEDIANS.items():
        rows.append([title, *("" for _ in cells)])
        for name in cells[0]["rounds"][key]:
            medians = (median_and_range(cell["rounds"][key][name]) for cell in cells)
            rows.append([f"  {TITLES[name]}", *medians])
    for key, (title, form) in ROWS.items():
        rows.append([title, *("" for _ in cells)])
        for name in cells[0]["sentences"]:
            rows.append([f"  {TITLES[name]}", *(format(cell[key][name], form) for cell in cells)])
    return aligned(rows)


def cache_table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return how many times as fast the KV cache makes each size, a column a length."""
    lengths = list(next(iter(results.values())))
    rows = [["tokens", *lengths]]
    for size, by_length in results.items():
        rows.append([size, *(f"{by_length[length]['ratio']:.2f}" for length in lengths)])
    return aligned(rows)
