"""What the turns of the contestants of decode.py come to."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from rounded import median_and_range

# What a table calls each contestant.
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
# Who translates by another's engine, and who that is.
BACKENDS = {"ctranslate2_backend": "ctranslate2_float32"}


def summary(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the medians over some rounds.

    Args:
        rounds: sentences a second of each contestant; at least one round.

    Returns:
        The median speed of each contestant under its name; under `ratios` how many times as fast
        as each other one ours is; under `backend_ratios` how many times as fast as the engine by
        itself each is that translates by it; and under `rounds` the same of every round. Ratios
        are medians of the rounds' own ratios.
    """

    def ratios(name: str, other: str) -> list[float]:
        return [played[name] / played[other] for played in rounds]

    names = list(rounds[0])
    by_round = {
        "speeds": {name: [played[name] for played in rounds] for name in names},
        "ratios": {name: ratios("ours", name) for name in names if name != "ours"},
        "backend_ratios": {
            name: ratios(name, engine)
            for name, engine in BACKENDS.items()
            if name in names and engine in names
        },
    }
    medians = {
        key: {name: median(figures) for name, figures in found.items()}
        for key, found in by_round.items()
    }
    return medians.pop("speeds") | medians | {"rounds": by_round}


def table(size: str, results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return the figures of one size as lines to read.

    Args:
        size: its name.
        results: what `summary` returned, with what else there is, by search and mode.
    """
    cells = [cell for modes in results.values() for cell in modes.values()]
    heads = [f"{search} {mode}" for search, modes in results.items() for mode in modes]
    lines = [(size, *heads)]
    names = list(cells[0]["sentences"])

    def rows(title: str, key: str, form: str) -> None:
        lines.append((title, *("" for _ in cells)))
        for name in names:
            lines.append((f"  {TITLES[name]}", *(format(cell[key][name], form) for cell in cells)))

    def medians(title: str, key: str) -> None:
        lines.append((title, *("" for _ in cells)))
        for name in cells[0]["rounds"][key]:
            figures = (median_and_range(cell["rounds"][key][name]) for cell in cells)
            lines.append((f"  {TITLES[name]}", *figures))

    medians("sentences/s", "speeds")
    medians("tformer is so many times as fast as", "ratios")
    medians("so many times as fast as its engine", "backend_ratios")
    rows("BLEU", "bleu", ".2f")
    rows("output tokens", "tokens", ",")
    rows("sentences", "sentences", ",")
    rows("peak MiB", "memory_mib", ",.0f")
    rows("fastest setting", "settings", "")
    return _aligned(lines)


def cache_table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return how many times as fast the cache makes each size, a column a length."""
    lengths = list(next(iter(results.values())))
    lines = [("tokens", *lengths)]
    for size, by_length in results.items():
        lines.append((size, *(f"{by_length[length]['ratio']:.2f}" for length in lengths)))
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return rows with the first cell to the left, the others to the right, and room between."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = (
        f"{title:<{widths[0]}}"
        + "".join(f"{cell:>{width + 3}}" for cell, width in zip(cells, widths[1:], strict=True))
        for title, *cells in lines
    )
    return "\n".join(row.rstrip() for row in rows)
