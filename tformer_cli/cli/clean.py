"""`tformer clean`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.cli.bitext import (
    FieldsOption,
    OnErrorOption,
    SourceArgument,
    SourceLanguageOption,
    TargetArgument,
    TargetLanguageOption,
    given_text,
    languages_of,
)
from tformer_cli.cli.options import JsonOption, WorkersOption
from tformer_cli.cli.printing import tell, tell_json
from tformer_cli.config.load import as_plain, changed_filters
from tformer_cli.errors import quantity
from tformer_cli.terminal import progress_bar

if TYPE_CHECKING:
    from tformer_cli.corpus.clean import Cleaning

# Characters of a line that are shown of an example.
MAX_EXAMPLE_CHARACTERS = 100


def clean(
    source: SourceArgument,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="PREFIX",
            help="Write PREFIX.en, PREFIX.de (or other languages) and PREFIX.dropped.jsonl; with "
            "PREFIX.gz, PREFIX.en.gz and so on.",
        ),
    ],
    target: TargetArgument = None,
    fields: FieldsOption = None,
    on_error: OnErrorOption = "stop",
    source_language: SourceLanguageOption = None,
    target_language: TargetLanguageOption = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Drop pairs of which a side is a line of this text, such as a side of validation "
            "or test text; repeatable.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="data.filters.KEY=VALUE",
            help="Override a threshold; null switches a rule off; repeatable.",
        ),
    ] = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drop bad pairs of a parallel text, and say why.

    The rules are the keys of data.filters of a config: length, ratio, letters, markup, repeated
    characters, script, copies, numbers, held-out text, language, duplicates and near-duplicates.
    The pairs kept stay in order. The record has each pair dropped, with its line (its number in a
    file of pairs) and its reason.
    Re-running an interrupted command resumes it.

    Example: tformer clean crawl.en crawl.de --output cleaned --held-out test.en --held-out test.de

    Example: tformer clean a.tsv --fields 2 4 -o b.gz --set data.filters.max_ratio=2
    """
    text = given_text(source, target, fields, on_error)
    languages = languages_of(text, source_language, target_language)

    from tformer_cli.corpus.clean import clean as clean_text
    from tformer_cli.corpus.filters import CLEANING

    filters = changed_filters(CLEANING, languages, settings or [])
    with progress_bar("pair") as bar:
        result = clean_text(
            text,
            output,
            languages=languages,
            filters=filters,
            held_out=held_out or (),
            workers=workers,
            on_done=bar.update,
        )
    _print(result, as_json)


def _print(result: "Cleaning", as_json: bool) -> None:
    files = as_plain(result.text)
    if as_json:
        content = {
            "num_pairs": result.report.seen,
            "num_kept": result.report.kept,
            "dropped": result.report.dropped,
            "examples": result.examples,
            "record": str(result.record),
            "text": files,
        }
        tell_json(content)
        return
    tell(str(result.report))
    for reason, count in result.report.dropped.items():
        tell(f"{reason}: {count / result.report.seen:.2%}")
        for row in result.examples[reason]:
            for side in ("source", "target"):
                tell(f"  {row['line']}: {row[side][:MAX_EXAMPLE_CHARACTERS]}")
    kept = result.report.kept
    tell(f"{result.record}: line, reason, source and target of each pair dropped")
    tell(f"{files['source']}, {files['target']}: {quantity(kept, 'pair')}")
