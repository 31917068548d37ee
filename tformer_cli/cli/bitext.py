"""The parallel text that a command is given: two files, or one file of pairs; its languages."""

from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.config.schema.text import Bitext, OnError, PairsFile, ParallelText, PlainText
from tformer_cli.errors import UsageError

SourceArgument = Annotated[
    Path,
    typer.Argument(help="Source text, one sentence per line; or a file of pairs, such as TSV."),
]
TargetArgument = Annotated[
    Path | None,
    typer.Argument(help="Its translation, line by line; none for a file of pairs."),
]
FieldsOption = Annotated[
    tuple[str, str] | None,
    typer.Option(
        help="Columns or JSON keys of source and target in a file of pairs. "
        "Default: the languages, `source` and `target`, or 1 and 2.",
        metavar="SOURCE TARGET",
        show_default=False,
    ),
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(
        help="A record of a file of pairs without a pair stops the command, or is skipped and "
        "counted.",
        metavar="stop|skip",
    ),
]
SourceLanguageOption = Annotated[
    str | None,
    typer.Option(help="ISO code, such as en. Default: by file name (.en) or script."),
]
TargetLanguageOption = Annotated[
    str | None,
    typer.Option(help="ISO code, such as de. Default: by file name (.de) or script."),
]


def given_text(
    source: Path, target: Path | None, fields: tuple[str, str] | None, on_error: OnError
) -> Bitext:
    """Return the text of two files, or of one file with both sides."""
    if target is None:
        source_field, target_field = fields or (None, None)
        return PairsFile(
            pairs=source, source_field=source_field, target_field=target_field, on_error=on_error
        )
    if on_error == "skip":
        what = "has no effect on two text files"
        raise UsageError("--on-error", what, got=on_error, remedy="leave it out")
    if fields is not None:
        what = "has no effect on two text files"
        raise UsageError("--fields", what, got=" ".join(fields), remedy="leave it out")
    return ParallelText(source=source, target=target)


def language_of(text: Bitext, side: int, code: str | None, option: str) -> str:
    """Return the ISO code of a side: given by `option`, or from its file name or script."""
    from tformer_cli.corpus.reader import read_rows
    from tformer_cli.text.language import (
        is_language_code,
        language_of_name,
        language_of_script,
        languages_of_name,
    )

    if code is not None and not is_language_code(code):
        raise UsageError(option, "must be an ISO code", got=code, remedy="write en, for instance")
    file = (text.source_file, text.target_file)[side]
    if isinstance(text, PairsFile):
        named = languages_of_name(file)
        of_name = named and named[side]
        lines = (row[side] for row in read_rows(text))
    else:
        of_name = language_of_name(file)
        lines = (line for (line,) in read_rows(PlainText(text=file)))
    language = code or of_name or language_of_script(lines)
    if language is None:
        what = "has a language that neither its name nor its script tells"
        raise UsageError(str(file), what, remedy=f"add {option} with an ISO code, such as en")
    return language
