"""`tformer vocab`."""

import dataclasses
import json
from typing import Annotated

import typer

from tformer_cli.cli.entry import suggest, table
from tformer_cli.cli.options import ConfigArgument, JsonOption, RunOption, SetOption
from tformer_cli.config.load import load_with_texts
from tformer_cli.storage.run_directory import run_of_config

# What the table says of a `VocabularyReport`.
ROWS = {
    "vocabulary size": "{0.vocabulary_size:,}",
    "sentences": "{0.num_sentences:,}",
    "tokens": "{0.num_tokens:,}",
    "characters covered": "{0.coverage:.3%}",
    "unknown tokens": "{0.unknown_rate:.3%}",
    "byte tokens": "{0.byte_rate:.3%}",
    "tokens per sentence": "{0.lengths.mean:.1f}",
    "  median": "{0.lengths.median:,}",
    "  99th percentile": "{0.lengths.p99:,}",
    "  longest": "{0.lengths.longest:,}",
    "characters per token": "{0.characters_per_token:.2f}",
}


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
        (f"{text} {languages[side]}", *(shown.format(report) for shown in ROWS.values()))
        for text, sides in reports.items()
        for side, report in sides.items()
    ]
    typer.echo(table(zip(("", *ROWS), *columns, strict=True), align="<" + ">" * len(columns)))
    typer.echo(f"vocabulary: {run_directory.tokenizer}")
    changes = [word for setting in settings or [] for word in ("--set", setting)]
    suggest("train", config, *(() if run is None else ("--run", run)), *changes)
