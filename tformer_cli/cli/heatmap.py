"""`tformer heatmap`."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tformer_cli.cli.messages import warn
from tformer_cli.cli.options import CheckpointOption, LeadingRunArgument, chosen_run
from tformer_cli.errors import UsageError
from tformer_cli.plotting import heatmap_picture as picture
from tformer_cli.plotting.heatmap_page import save_page
from tformer_cli.plotting.sentence import Maps, Sentence, Table

if TYPE_CHECKING:
    from torch import Tensor

    from tformer_cli.translate.attention_maps import SentenceMaps

# A page needs no extra.
DEFAULT_OUTPUT = Path("heatmap.html")
FORMATS = (*picture.FORMATS, ".html")

Part = Literal["all", "encoder", "decoder", "cross", "positions"]


def heatmap(
    runs: LeadingRunArgument = None,
    *,
    sentence: Annotated[
        str, typer.Argument(metavar="SENTENCE", help="In the source language, in quotes.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="A translation to look at. Default: the one that the run's search finds."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The picture: .html to choose and point in, .png or .svg. "
            f"Default: {DEFAULT_OUTPUT}.",
            show_default=False,
        ),
    ] = None,
    part: Annotated[
        Part,
        typer.Option(help="Which maps: self-attention, cross-attention, or what places mean."),
    ] = "all",
    layer: Annotated[
        int | None, typer.Option(min=1, help="Maps of this layer alone, counted from 1.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(min=1, help="Maps of this head alone, counted from 1.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object of the numbers; draw only with --output."
        ),
    ] = False,
    checkpoint: CheckpointOption = "best",
) -> None:
    """Draw what a model looks at while it translates a sentence, head by head.

    Each token is a row that shares a weight of 1 among the tokens that it looks at. Below stands
    what the model knows of places: its table of positions, its rotary turns, its biases.

    Example: tformer heatmap "The girl has danced with us."

    Example: tformer heatmap runs/demo "The girl has danced with us." --part cross -o dance.png
    """
    run = chosen_run(_one_run(runs or [], sentence), checkpoint)
    if output is not None and output.suffix.lower() not in FORMATS:
        raise UsageError("--output", "must end in .png, .svg or .html", got=str(output))

    from tformer_cli.storage.trained_model import load_trained_network
    from tformer_cli.translate.attention_maps import sentence_maps

    trained = load_trained_network(run, checkpoint)
    found = sentence_maps(trained.model, trained.tokenizers, trained.config, sentence, target)
    chosen = _chosen(found, part, layer, head)
    if output is not None or not as_json:
        file = output or DEFAULT_OUTPUT
        _draw(chosen, file)
        if not as_json:
            typer.echo(f"{file}: written")
    if as_json:
        typer.echo(json.dumps(_content(chosen), ensure_ascii=False))


def _one_run(runs: Sequence[Path], sentence: str) -> Path | None:
    """Return the run that was named, if any.

    Raises:
        UsageError: what was named are the words of a sentence, or a run without one.
    """
    if len(runs) > 1:
        words = " ".join([*map(str, runs), sentence])
        raise UsageError("SENTENCE", "must be one argument", got=words, remedy="put it in quotes")
    if not runs and os.path.isdir(sentence):
        raise UsageError(
            "SENTENCE",
            "is missing",
            got=f"the folder {sentence}",
            remedy="add the sentence, in quotes",
        )
    return runs[0] if runs else None


def _chosen(found: "SentenceMaps", part: Part, layer: int | None, head: int | None) -> Sentence:
    """Return what was asked for, as plain numbers.

    Raises:
        UsageError: the network has no such part, layer or head.
    """
    parts = [*(one.part for one in found.maps), *(["positions"] if found.positions else [])]
    if part not in ("all", *parts):
        raise UsageError(
            "--part",
            "must be one that the network has",
            got=part,
            remedy=f"use {' or '.join(parts)}",
        )
    for option, number in (("--layer", layer), ("--head", head)):
        if part == "positions" and number is not None:
            raise UsageError(option, "has no effect on --part positions", remedy="leave it out")
    maps = [one for one in found.maps if part in ("all", one.part)]
    if layer is not None:
        _check_number("--layer", "layers", layer, max(len(one.layers) for one in maps))
        maps = [one.of_layer(layer) for one in maps if layer in one.layers]
    if head is not None:
        _check_number("--head", "heads", head, max(len(one.heads) for one in maps))
        maps = [one.of_head(head) for one in maps if head in one.heads]
    tables = found.positions if part in ("all", "positions") else ()
    return Sentence(
        found.source,
        found.target,
        [
            Maps(one.part, one.rows, one.columns, one.layers, one.heads, _numbers(one.weights))
            for one in maps
        ],
        [
            Table(table.kind, stacks, table.rows, table.columns, _numbers(table.values))
            for stacks, table in tables
        ],
    )


def _check_number(option: str, noun: str, number: int, most: int) -> None:
    if number > most:
        raise UsageError(option, f"must be at most the {noun} ({most})", got=str(number))


def _numbers(values: "Tensor") -> Any:
    """Return nested lists of numbers of six digits, with None for what is infinite."""

    def rounded(part: Any) -> Any:
        if isinstance(part, list):
            return [rounded(one) for one in part]
        return float(f"{part:.6g}") if math.isfinite(part) else None

    return rounded(values.tolist())


def _content(sentence: Sentence) -> dict[str, Any]:
    """Return what --json prints."""
    content = asdict(sentence)
    for maps in content["maps"]:
        maps["shape"] = [len(maps[side]) for side in ("layers", "heads", "rows", "columns")]
    return content


def _draw(sentence: Sentence, file: Path) -> None:
    """Write the picture, and say what is missing in it."""
    if file.suffix.lower() == ".html":
        save_page(sentence, file)
        return
    picture.save(picture.draw(sentence), file)
    missing = picture.missing_glyphs(sentence, file)
    if missing is not None:
        warn(missing)
