"""The parallel text that a command is given: two files, or one file of pairs; its languages."""

from collections.abc import Sequence
from dataclasses import replace
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
_LANGUAGE_OPTIONS = ("--source-language", "--target-language")
SourceLanguageOption = Annotated[
    str | None,
    typer.Option(help="ISO code, such as en. Default: by file name (.en), content or script."),
]
TargetLanguageOption = Annotated[
    str | None,
    typer.Option(help="ISO code, such as de. Default: by file name (.de), content or script."),
]


def given_text(
    source: Path, target: Path | None, fields: tuple[str, str] | None, on_error: OnError
) -> Bitext:
    """Return the text of two files, or of one file with both sides."""
    if fields is not None and fields[1].startswith("--"):
        # It takes the next two words, whatever they are.
        what = "must be two columns or keys, of source and target"
        raise UsageError("--fields", what, got=" ".join(fields), remedy="add the second one")
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


def languages_of(
    text: Bitext, source_language: str | None, target_language: str | None
) -> tuple[str, str]:
    """Return the ISO codes of both sides: given, or by file name, by content, or by script."""
    from tformer_cli.text.language import are_exchanged, is_language_code

    given = source_language, target_language
    for code, option in zip(given, _LANGUAGE_OPTIONS, strict=True):
        if code is not None and not is_language_code(code):
            remedy = "write en, for instance"
            raise UsageError(option, "must be an ISO code", got=code, remedy=remedy)
    named = named_languages(text)
    if are_exchanged(given, named):
        if isinstance(text, ParallelText):
            what = "is the language of the other file by their names"
            raise _exchanged(given, what, "exchange the files, or the languages")
        if text.source_field is None and not _chosen_by_language(text, named):
            what = "is the language of the other side by the name of the file"
            raise _exchanged(given, what, "name source and target by --fields")
        named = named[::-1]
    codes = [code or name for code, name in zip(given, named, strict=True)]
    if isinstance(text, PairsFile) and None in codes:
        codes = _declared(text, codes)
    source, target = (code or _by_script(text, side) for side, code in enumerate(codes))
    return source, target


def named_languages(text: Bitext) -> tuple[str | None, str | None]:
    """Return the languages that the names of the files tell."""
    from tformer_cli.text.language import language_of_name, languages_of_name

    if isinstance(text, PairsFile):
        return languages_of_name(text.pairs) or (None, None)
    return language_of_name(text.source), language_of_name(text.target)


def _exchanged(given: Sequence[str | None], what: str, remedy: str) -> UsageError:
    """Return the error of languages that are given the other way round."""
    option, code = next(pair for pair in zip(_LANGUAGE_OPTIONS, given, strict=True) if pair[1])
    return UsageError(option, what, got=code, remedy=remedy)


def _chosen_by_language(text: PairsFile, languages: Sequence[str | None]) -> bool:
    """Return whether the languages choose the sides of a file of pairs, whatever their order."""
    from tformer_cli.corpus.reader import read_rows

    source, target = map(str, languages)
    orders = (source, target), (target, source)
    rows = (read_rows(replace(text, languages=order)) for order in orders)
    # A pair of equal sides is the same in any order.
    first, other = (next((row for row in each if row[0] != row[1]), ()) for each in rows)
    return first == other[::-1]


def _declared(text: PairsFile, codes: Sequence[str | None]) -> list[str | None]:
    """Return the codes, and for those that are missing the other languages of the file."""
    from tformer_cli.corpus.records import declared_languages
    from tformer_cli.text.language import base_language, is_language_code

    languages = [code for code in declared_languages(text) if is_language_code(code)]
    known = {base_language(code) for code in codes if code}
    others = [language for language in languages if base_language(language) not in known]
    if not languages:
        return list(codes)
    if len(others) != codes.count(None):
        what = "does not tell which of its languages are source and target"
        remedy = "add --source-language and --target-language"
        raise UsageError(str(text.pairs), what, got=", ".join(languages), remedy=remedy)
    return [code or others.pop(0) for code in codes]


def _by_script(text: Bitext, side: int) -> str:
    """Return the language of the script of a side."""
    from tformer_cli.corpus.reader import read_rows
    from tformer_cli.text.language import language_of_script

    file = (text.source_file, text.target_file)[side]
    if isinstance(text, PairsFile):
        language = language_of_script(row[side] for row in read_rows(text))
    else:
        language = language_of_script(line for (line,) in read_rows(PlainText(text=file)))
    if language is None:
        what = "has a language that neither its name nor its script tells"
        remedy = f"add {_LANGUAGE_OPTIONS[side]} with an ISO code, such as en"
        raise UsageError(str(file), what, remedy=remedy)
    return language
