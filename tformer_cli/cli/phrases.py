"""`tformer extract-phrases`."""

from typing import Annotated

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
from tformer_cli.cli.options import JsonOption
from tformer_cli.cli.printing import tell, tell_json
from tformer_cli.config.load import to_yaml, training_item
from tformer_cli.errors import quantity
from tformer_cli.terminal import progress_bar


def extract_phrases(
    source: SourceArgument,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="PREFIX",
            help="Write PREFIX.en and PREFIX.de (or other languages); with PREFIX.gz, PREFIX.en.gz "
            "and so on.",
        ),
    ],
    target: TargetArgument = None,
    fields: FieldsOption = None,
    on_error: OnErrorOption = "stop",
    source_language: SourceLanguageOption = None,
    target_language: TargetLanguageOption = None,
    max_words: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum number of words of a phrase; where no whitespace separates words, twice "
            "as many characters.",
        ),
    ] = 7,
    as_json: JsonOption = False,
) -> None:
    """Write the phrase pairs of a small parallel text, to train on them too.

    Words are aligned by what occurs together in this text (IBM Model 1, Dyer et al. 2013). A phrase
    pair is a part of a source and the part of its target that are aligned with each other and with
    nothing else (Koehn et al. 2003); each is written once. The lines for data.train have a tag that
    each source will begin with.

    Example: tformer extract-phrases corpus.en corpus.de --output phrases
    """
    text = given_text(source, target, fields, on_error)
    languages = languages_of(text, source_language, target_language)

    from tformer_cli.corpus import phrases

    with progress_bar("pair") as bar:
        result = phrases.extract_phrases(
            text, output, languages=languages, max_words=max_words, on_done=bar.update
        )
    if as_json:
        content = {
            "num_pairs": result.num_pairs,
            "num_phrases": result.num_phrases,
            "train": training_item(result.text),
        }
        tell_json(content)
        return
    num_phrases = quantity(result.num_phrases, "phrase pair")
    tell(f"{num_phrases} of {quantity(result.num_pairs, 'pair')} of sentences")
    tell("below data.train of a config:")
    tell(to_yaml([training_item(result.text)]).rstrip("\n"))
