"""`tformer vocab`."""

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.cli.entry import suggest, table
from tformer_cli.cli.options import ConfigArgument, JsonOption, RunOption, SetOption
from tformer_cli.config.load import load_with_texts
from tformer_cli.storage.run_directory import run_of_config

if TYPE_CHECKING:
    from tformer_cli.corpus.statistics import VocabularyReport


def vocab(
    config: ConfigArgument,
    run: RunOption = None,
    settings: SetOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing vocabulary.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build the vocabulary of a run and show how well it fits the training and validation text.

    `tformer train` reuses it if text, tokenizer and seed match (give it the same --set), and builds
    its own otherwise.

    Example: tformer vocab configs/demo.yaml --set tokenizer.vocab_size=4000 --force
    """
    parsed = load_with_texts(config, settings or [])
    run_directory = run_of_config(config, run)

    # torch takes a second to import.
    from tformer_cli.corpus.statistics import report_sides
    from tformer_cli.training.setup import build_vocabulary

    data = parsed.data
    tokenizers = build_vocabulary(parsed, run_directory, overwrite=force)
    reports = {
        "train": report_sides(tokenizers, data.train),
        "valid": report_sides(tokenizers, [data.valid]),
    }
    if as_json:
        content = {
            text: {side: dataclasses.asdict(report) for side, report in sides.items()}
            for text, sides in reports.items()
        }
        typer.echo(json.dumps({"tokenizer": str(run_directory.tokenizer), **content}, indent=2))
        return
    languages = {"source": data.source_language, "target": data.target_language}
    columns = [
        (f"{text} {languages[side]}", *_cells(report))
        for text, sides in reports.items()
        for side, report in sides.items()
    ]
    typer.echo(table(zip(LABELS, *columns, strict=True), align="<" + ">" * len(columns)))
    typer.echo(f"vocabulary: {run_directory.tokenizer}")
    changes = [word for setting in settings or [] for word in ("--set", setting)]
    suggest("train", config, *(() if run is None else ("--run", run)), *changes)


LABELS = (
    "",
    "vocabulary size",
    "sentences",
    "tokens",
    "characters covered",
    "unknown tokens",
    "byte tokens",
    "tokens per sentence",
    "  median",
    "  99th percentile",
    "  longest",
    "characters per token",
)


def _cells(report: "VocabularyReport") -> tuple[str, ...]:
    return (
        f"{report.vocabulary_size:,}",
        f"{report.num_sentences:,}",
        f"{report.num_tokens:,}",
        f"{report.coverage:.3%}",
        f"{report.unknown_rate:.3%}",
        f"{report.byte_rate:.3%}",
        f"{report.lengths.mean:.1f}",
        f"{report.lengths.median:,}",
        f"{report.lengths.p99:,}",
        f"{report.lengths.longest:,}",
        f"{report.characters_per_token:.2f}",
    )
