#!/usr/bin/env python
"""Make Multi30k dirty on purpose, clean it, and print precision and recall of each rule.

Each pair is made dirty in one way or left alone. A rule is precise if what it drops is dirty, in
whatever way; its recall is the share of the pairs of its own kind of dirt that it drops. The dirty
and the cleaned text stay in the folder, to train on.

Example: python scripts/bench/cleaning.py data/multi30k --output runs/cleaning
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from cli import AsJson, show
from harness import aligned

from tformer_cli.cli.entry import new_app, run
from tformer_cli.config.schema.text import ParallelText
from tformer_cli.corpus.clean import clean
from tformer_cli.corpus.filters import CLEANING
from tformer_cli.corpus.lines import read_lines

LANGUAGES = ("en", "de")
# In it, a word of the target is in another script.
CYRILLIC = str.maketrans("abdefghiklmnoprstuvwz", "абдефгхиклмнопрстуввз")

Pair = tuple[str, str]
# Makes a pair dirty, given the clean pairs before it, and the same sentence in another language.
Dirt = Callable[[random.Random, Pair, Sequence[Pair], str], Pair]


def cut(line: str) -> str:
    """Return the first words of a line, at most a quarter of them."""
    words = line.split()
    return " ".join(words[: max(1, len(words) // 4)])


def tagged(rng: random.Random, line: str) -> str:
    """Return a line with markup around a word or behind it."""
    words = line.split()
    index = rng.randrange(len(words))
    words[index] = rng.choice(
        ["<b>{}</b>", "{}&nbsp;", '<a href="x.html">{}</a>', "{}<br/>"]
    ).format(words[index])
    return " ".join(words)


def edited(rng: random.Random, line: str) -> str:
    """Return a line whose last word is said twice, or that ends otherwise."""
    words = line.split()
    return rng.choice([f"{line} {words[-1]}", line.rstrip(".") + "!", line.lower() + " ..."])


# The share of each kind of dirt, the rule that shall drop it, if there is one, and its making.
KINDS: dict[str, tuple[float, str | None, Dirt]] = {
    "one side empty": (0.01, "empty", lambda r, p, e, o: r.choice([(p[0], ""), (" ", p[1])])),
    "twenty pairs in one": (
        0.01,
        "too_long",
        lambda r, p, e, o: tuple(map(" ".join, zip(*r.sample(e, 20), strict=True))),
    ),
    "target cut to a quarter": (0.03, "ratio", lambda r, p, e, o: (p[0], cut(p[1]))),
    "digits and signs": (
        0.01,
        "letters",
        lambda r, p, e, o: (" | ".join(f"{r.random():.3f} cm" for _ in range(6)), p[1]),
    ),
    "markup": (0.03, "markup", lambda r, p, e, o: (p[0], tagged(r, p[1]))),
    "a sign ten times": (
        0.01,
        "repeats",
        lambda r, p, e, o: (p[0] + r.choice("!.-=_*") * 10, p[1]),
    ),
    "target in Cyrillic": (0.01, "script", lambda r, p, e, o: (p[0], p[1].translate(CYRILLIC))),
    "source copied": (0.05, "copied", lambda r, p, e, o: (p[0], p[0])),
    "another number": (
        0.03,
        "numbers",
        lambda r, p, e, o: (f"{p[0]} ({r.randrange(13, 99)})", f"{p[1]} ({r.randrange(100, 999)})"),
    ),
    "target in French": (0.05, "language", lambda r, p, e, o: (p[0], o)),
    "pair repeated": (0.03, "duplicate", lambda r, p, e, o: r.choice(e)),
    "pair repeated, edited": (
        0.03,
        "similar",
        lambda r, p, e, o: tuple(edited(r, line) for line in r.choice(e)),
    ),
    "line of the test text": (0.01, "held_out", lambda r, p, e, o: p),
    "target of another pair": (0.05, None, lambda r, p, e, o: (p[0], r.choice(e)[1])),
}


def make_dirty(
    pairs: Sequence[Pair], others: Sequence[str], held_out: Iterable[Pair], seed: int
) -> tuple[list[Pair], list[str]]:
    """Return pairs of which shares are dirty, and the kind of each; `clean` is one too."""
    rng = random.Random(seed)
    shares = [share for share, _, _ in KINDS.values()]
    earlier, dirty, kinds = list(pairs[:100]), list(pairs[:100]), ["clean"] * 100
    held_out = itertools.cycle(held_out)
    for pair, other in zip(pairs[100:], others[100:], strict=True):
        (kind,) = rng.choices([*KINDS, "clean"], [*shares, 1 - sum(shares)])
        if kind == "clean":
            earlier.append(pair)
            dirty.append(pair)
        else:
            base = next(held_out) if KINDS[kind][1] == "held_out" else pair
            dirty.append(KINDS[kind][2](rng, base, earlier, other))
        kinds.append(kind)
    return dirty, kinds


def measure(kinds: Sequence[str], reasons: dict[int, str]) -> list[dict[str, Any]]:
    """Return precision and recall of the rule of each kind of dirt, and the share kept of clean."""
    dropped = Counter((kinds[line - 1], reason) for line, reason in reasons.items())
    rows = []
    for kind, (share, rule, _) in {**KINDS, "clean": (None, None, None)}.items():
        count = kinds.count(kind)
        by_rule = sum(dropped[other, rule] for other in [*KINDS, "clean"])
        of_kind = sum(number for (other, _), number in dropped.items() if other == kind)
        rows.append(
            {
                "kind": kind,
                "share": share,
                "pairs": count,
                "rule": rule,
                "precision": 1 - dropped["clean", rule] / by_rule if by_rule else None,
                "recall": dropped[kind, rule] / count if rule and count else None,
                "dropped": of_kind / count if count else None,
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the figures as a table."""

    def cell(value: object) -> str:
        return f"{value:.1%}" if isinstance(value, float) else str("" if value is None else value)

    columns = ("kind", "share", "pairs", "rule", "precision", "recall", "dropped")
    return aligned([columns, *([cell(row.get(name)) for name in columns] for row in rows)])


app = new_app()


@app.command()
def main(
    data: Annotated[Path, typer.Argument(help="Folder of Multi30k, in en, de and fr, as .gz.")],
    output: Annotated[Path, typer.Option(help="Folder to write.")] = Path("runs/cleaning"),
    num_pairs: Annotated[int, typer.Option("--pairs", min=200, help="Pairs to take.")] = 29_000,
    as_json: AsJson = False,
) -> None:
    """Print precision and recall of each rule of `tformer clean`."""
    train, tests = (
        [[*read_lines(data / f"{name}.{language}.gz")] for language in (*LANGUAGES, "fr")]
        for name in ("train", "test_2016_flickr")
    )
    pairs = list(zip(*train[:2], strict=True))[:num_pairs]
    held_out = zip(*tests[:2], strict=True)
    dirty, kinds = make_dirty(pairs, train[2][:num_pairs], held_out, seed=1)
    output.mkdir(parents=True, exist_ok=True)
    files = [output / f"dirty.{language}" for language in LANGUAGES]
    for file, lines in zip(files, zip(*dirty, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    result = clean(
        ParallelText(source=files[0], target=files[1]),
        output / "cleaned",
        languages=LANGUAGES,
        filters=replace(CLEANING, min_language=0.1),
        held_out=[data / f"test_2016_flickr.{language}.gz" for language in LANGUAGES],
    )
    rows = [json.loads(line) for line in read_lines(result.record)]
    figures = measure(kinds, {row["line"]: row["reason"] for row in rows})
    show(figures, as_json, lambda: table(figures), str(result.report))


if __name__ == "__main__":
    run(app)
