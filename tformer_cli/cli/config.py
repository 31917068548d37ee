"""`tformer config` and `tformer init`."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    named_languages,
)
from tformer_cli.cli.entry import new_app
from tformer_cli.cli.options import FileArgument, SetOption
from tformer_cli.cli.printing import tell_json, warn
from tformer_cli.cli.streams import reject_pipes
from tformer_cli.config.load import as_plain, dump_config, load_config, load_with_texts
from tformer_cli.config.schema.text import Bitext, Direction, PairsFile, ParallelText
from tformer_cli.config.starter import (
    check_replaceable,
    takes_phrases,
    write_shipped,
    write_starter,
)
from tformer_cli.errors import UsageError, printable, quantity
from tformer_cli.terminal import progress_bar

if TYPE_CHECKING:
    from tformer_cli.corpus.split import Split

# Maximum number of characters of a side that `check` and `new` show.
_SHOWN = 60

config_app = new_app(
    name="config", help="Check, show or create a configuration.", no_args_is_help=True
)


def init(
    folder: Annotated[
        Path, typer.Argument(help="Where to write.", show_default="the current one")
    ] = Path(),
) -> None:
    """Copy the example configs and the demo text into a folder.

    They come with the package and are written to configs/ and data/demo/. No existing file is
    replaced.

    Example: tformer init && tformer train configs/demo.yaml
    """
    for name, count in write_shipped(folder).items():
        typer.echo(f"{folder / name}: {quantity(count, 'file')}")
    config = folder / "configs" / "demo.yaml"
    typer.echo(f"next: tformer train {shlex.quote(str(config))}")


@config_app.command()
def check(file: FileArgument, settings: SetOption = None) -> None:
    """Report all errors of a configuration, and show how its texts are read.

    Three pairs of each text are printed.

    Warnings: languages that are no ISO codes or that file names have the other way round, a BLEU
    tokenizer that does not suit the target language, overlap of validation or test text with the
    training text.

    Example: tformer config check configs/demo.yaml
    """
    config = load_with_texts(file, settings or [])

    from tformer_cli.corpus.reader import first_rows
    from tformer_cli.corpus.training_text import training_rows
    from tformer_cli.evaluation.score_warnings import config_warnings

    data = config.data
    texts = {f"data.{key}": text for key, text in data.texts().items()}
    rows_of = lambda text: training_rows(text, data.direction_of(text), data.held_out)  # noqa: E731
    _show_rows(first_rows(texts, rows_of))

    with progress_bar(data.unit) as bar:
        for warning in config_warnings(config, on_done=bar.update):
            warn(warning)
    typer.echo(f"{file}: ok")


@config_app.command()
def show(
    file: FileArgument,
    settings: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Print a configuration with every default and absolute paths.

    Example: tformer config show configs/demo.yaml --set training.max_steps=100
    """
    config = load_config(file, settings or [])
    if as_json:
        tell_json(as_plain(config))
    else:
        typer.echo(dump_config(config), nl=False)


@config_app.command()
def new(
    source: SourceArgument,
    target: TargetArgument = None,
    fields: FieldsOption = None,
    on_error: OnErrorOption = "stop",
    valid_source: Annotated[
        Path | None, typer.Option(help="Source of the validation text.", show_default=False)
    ] = None,
    valid_target: Annotated[
        Path | None, typer.Option(help="Target of the validation text.", show_default=False)
    ] = None,
    source_language: SourceLanguageOption = None,
    target_language: TargetLanguageOption = None,
    output: Annotated[Path, typer.Option(help="The YAML file to write.")] = Path("config.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a commented configuration for two text files, or for one file of pairs.

    Without a validation text, pairs are held out for validation, and as many for a test: 5% of the
    different sources, at most 1,000. The splits are written beside the configuration; your files
    are not changed. No source or target sentence of the held-out pairs stays in the training text.
    A training on 501 to 2,000 pairs takes their phrase pairs too, as `tformer extract-phrases`
    writes them.

    Example: tformer config new corpus.en corpus.de --output my.yaml

    Example: tformer config new corpus.en-de.tsv --fields 2 4 --output my.yaml
    """
    if (valid_source is None) != (valid_target is None):
        missing = "--valid-source" if valid_source is None else "--valid-target"
        what = "--valid-source and --valid-target go together"
        raise UsageError(missing, what, remedy=f"add {missing}")
    valid_files = {"--valid-source": valid_source, "--valid-target": valid_target}
    reject_pipes({"SOURCE": source, "TARGET": target, **valid_files})
    text = given_text(source, target, fields, on_error)
    valid = None
    if valid_source is not None and valid_target is not None:
        valid = ParallelText(source=valid_source, target=valid_target)
    kept = text.files | {k: v for k, v in valid_files.items() if v}
    check_replaceable(output, kept, overwrite=force)
    # Imports that `show` does not need.
    from tformer_cli.corpus.phrases import with_phrases_extracted
    from tformer_cli.corpus.reader import first_rows
    from tformer_cli.corpus.split import given_split, split_text
    from tformer_cli.text.language import are_exchanged

    languages = languages_of(text, source_language, target_language)
    if valid is not None and are_exchanged(languages, named_languages(valid)):
        what = "is in the target language by its name"
        remedy = "exchange --valid-source and --valid-target"
        raise UsageError("--valid-source", what, got=str(valid.source), remedy=remedy)
    if isinstance(text, PairsFile):
        text = replace(text, languages=languages)
    with progress_bar("pair") as bar:
        if valid is None:
            split = split_text(
                text,
                output.parent / f"{output.stem}.data",
                languages,
                overwrite=force,
                on_done=bar.update,
            )
        else:
            split = given_split(text, valid, on_done=bar.update)
    num_phrases = _count_phrases(split, languages)
    phrases = {"phrases": with_phrases_extracted(split.texts["train"])} if num_phrases else {}
    write_starter(
        output,
        split.texts | phrases,
        languages,
        num_pairs=split.num_pairs["train"],
        num_characters=split.num_characters,
        num_words=split.num_words,
    )
    typer.echo(f"{output}: written, {' -> '.join(languages)}")
    for name, part in split.texts.items():
        repeated = split.num_in_training.get(name)
        also = "" if repeated is None else f", {repeated:,} also in train,"
        typer.echo(f"{name}: {quantity(split.num_pairs[name], 'pair')}{also} in {_names(part)}")
    if num_phrases:
        typer.echo(f"phrases: {quantity(num_phrases, 'pair')} of parts of train")
    if split.num_set_aside:
        held_out = "a source or a target of valid or test"
        typer.echo(f"set aside: {quantity(split.num_set_aside, 'pair')} with {held_out}")
    if split.num_empty:
        typer.echo(f"left out: {quantity(split.num_empty, 'pair')} with an empty side")
    _show_rows(first_rows({"read": text}))
    typer.echo(f"next: tformer train {shlex.quote(str(output))}")


def _count_phrases(split: "Split", languages: Direction) -> int:
    """Return the number of phrase pairs to train on beside the training text."""
    if not takes_phrases(split.num_pairs["train"]):
        return 0
    from tformer_cli.corpus.phrases import find_phrases

    held_out = [text for name, text in split.texts.items() if name != "train"]
    with progress_bar("pair") as bar:
        phrases, _ = find_phrases(
            split.texts["train"], languages, held_out=held_out, on_done=bar.update
        )
    return len(phrases)


def _names(text: Bitext) -> str:
    """Return the files of a text as words of a sentence."""
    return " and ".join(map(str, text.files.values()))


def _show_rows(texts: Iterable[tuple[str, Sequence[tuple[str, ...]]]]) -> None:
    """Print what each text is, and its first rows, shortened to the width of a terminal."""
    for text, rows in texts:
        typer.echo(printable(text))
        for row in rows:
            sides = (side if len(side) <= _SHOWN else f"{side[: _SHOWN - 1]}…" for side in row)
            typer.echo(f"  {printable(' | '.join(sides))}")
