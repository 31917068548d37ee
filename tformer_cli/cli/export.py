"""`tformer export`, `tformer import`, `tformer trim` and `tformer extend`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.choices import FormatName, Quantization
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
from tformer_cli.cli.options import CheckpointOption, JsonOption, LeadingRunArgument, chosen_run
from tformer_cli.cli.printing import suggest, suggest_translation, tell, tell_json
from tformer_cli.config.load import load_config
from tformer_cli.errors import UsageError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.terminal import progress_bar


def export(
    runs: LeadingRunArgument = None,
    *,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to write; it must not exist.")
    ],
    format_name: Annotated[
        FormatName,
        typer.Option(
            "--format",
            help="Program that will run the model; safetensors is a plain folder, which "
            "`tformer import` reads.",
            show_default=False,
        ),
    ],
    quantization: Annotated[
        Quantization, typer.Option(help="Number format of the matrices.")
    ] = "float32",
    check_lines: Annotated[
        int, typer.Option(min=1, help="Number of lines to check the export by.")
    ] = 200,
    check_file: Annotated[
        Path | None, typer.Option(help="Text of these lines. Default: the run's validation text.")
    ] = None,
    license_name: Annotated[
        str, typer.Option("--license", help="License of the weights, for the model card.")
    ] = "unknown",
    checkpoint: CheckpointOption = "best",
    as_json: JsonOption = False,
) -> None:
    """Write a trained model for another program, and check that both translate alike.

    Both programs translate real lines by greedy search and, if both implement ours, beam search. If
    a translation or a score differs, nothing is written; only rounded weights, as in int8, may
    differ. The folder also holds the tokenizers, and a model card (README.md) with scores and an
    example in Python.

    Example: tformer export runs/demo demo-ct2 --format ctranslate2

    Example: tformer export demo-int8 --format ctranslate2 --quantization int8 --license mit

    Example: tformer export runs/demo demo-plain --format safetensors --quantization bfloat16
    """
    run = chosen_run(_one_run(runs or [], folder), checkpoint)

    from tformer_cli.export.run import export_run

    with progress_bar("line") as bar:
        result = export_run(
            run,
            folder,
            format_name,
            quantization=quantization,
            checkpoint=checkpoint,
            check_file=check_file,
            check_lines=check_lines,
            license=license_name,
            on_done=bar.update,
        )
    if as_json:
        checks = [check.as_json() for check in result.checks]
        content = {"folder": str(folder), "format": format_name, "checks": checks}
        tell_json(content)
        return
    for line in (*result.checks, *result.ties):
        tell(str(line))
    tell(f"{folder}: written for {result.program} (see {result.card})")


def _one_run(runs: Sequence[Path], folder: Path) -> Path | None:
    """Return the run that was named, if any."""
    if len(runs) > 1:
        words = " ".join(map(str, [*runs, folder]))
        raise UsageError("RUN", "must be one run folder before DIR", got=words)
    if not runs and RunDirectory(folder).config_file.is_file():
        got = f"the run {folder}"
        raise UsageError("DIR", "is missing", got=got, remedy="add the folder to write")
    return runs[0] if runs else None


def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A folder for CTranslate2, with its sentencepiece models; an .argosmodel; a "
            "Marian (OPUS-MT), M2M-100, NLLB, mBART-50 or T5 model that transformers saved with "
            "safetensors; Marian's own model.npz with decoder.yml; or a folder that "
            "`tformer export --format safetensors` wrote.",
            show_default=False,
        ),
    ],
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder to write.", show_default=False)
    ],
    source_language: Annotated[
        str | None, typer.Option(help="ISO code, such as en. Default: from the folder.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="ISO code, such as de. Default: from the folder.")
    ] = None,
) -> None:
    """Make a run folder of a model, to translate, evaluate, export and fine-tune.

    Translations and probabilities are those of the model. Lines of several sentences are translated
    as they are; `tformer translate --max-source-sentences 1` splits them at sentence ends.

    Example: tformer import opus-mt-en-de runs/opus

    Example: tformer import demo-ct2 runs/again --target-language de

    Example: tformer import nllb runs/nllb --source-language eng_Latn --target-language fra_Latn

    Example: tformer import demo-plain runs/again
    """
    from tformer_cli.export.run import import_run

    trained = import_run(
        folder, RunDirectory(run), source_language=source_language, target_language=target_language
    )
    data, tokenizers = trained.config.data, trained.tokenizers
    sizes = {tokenizers.source.size, tokenizers.target.size}
    tell(
        f"{run}: {data.source_language} -> {data.target_language}, "
        f"{trained.model.num_parameters():,} parameters, "
        f"vocabulary {' and '.join(f'{size:,}' for size in sorted(sizes))}"
    )
    suggest_translation(trained.config, run)


def trim(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of the model.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Run folder to write.")],
    source: SourceArgument,
    target: TargetArgument = None,
    fields: FieldsOption = None,
    on_error: OnErrorOption = "stop",
    checkpoint: CheckpointOption = "best",
    as_json: JsonOption = False,
) -> None:
    """Write a run with a smaller vocabulary: the tokens of a parallel text.

    A pretrained model has tokens for all text; one domain needs few of them. Text that the tokens
    cover is translated as before. Other text is spelled by smaller tokens, characters or bytes.
    The run can be translated with, fine-tuned (--init-from) and exported.

    Example: tformer trim runs/opus runs/small memory.en memory.de

    Example: tformer trim runs/opus runs/small memory.tmx --on-error skip
    """
    text = given_text(source, target, fields, on_error)

    from tformer_cli.export.trim import trim_run

    with progress_bar("pair") as bar:
        before, after = trim_run(
            chosen_run(run, checkpoint),
            RunDirectory(output),
            text,
            checkpoint=checkpoint,
            on_done=bar.update,
        )
    if as_json:
        content = {"before": before._asdict(), "after": after._asdict()}
        tell_json(content)
        return
    for name, old, new in zip(before._fields, before, after, strict=True):
        words = name.removeprefix("num_").replace("_", " ")
        tell(f"{words}: {old:,} -> {new:,}")
    tell(f"{output}: written")
    suggest_translation(load_config(RunDirectory(output).config_file), output)


def extend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of the model.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Run folder to write.")],
    source: SourceArgument,
    target: TargetArgument = None,
    source_language: SourceLanguageOption = None,
    target_language: TargetLanguageOption = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="LANGUAGE",
            help="Target language of the run whose code the new one begins as. Default: the mean "
            "over all of them.",
            show_default=False,
        ),
    ] = None,
    fields: FieldsOption = None,
    on_error: OnErrorOption = "stop",
    checkpoint: CheckpointOption = "best",
) -> None:
    """Write a run with one more target language, to train further.

    The run must have several target languages, whose sources begin with the code of theirs. The new
    code takes a reserved token, and the text joins data.train. Translations into the other
    languages stay the same.

    Example: tformer extend runs/six runs/seven train.en train.es --like fr

    Example: tformer extend runs/six runs/seven corpus.tmx --target-language es
    """
    text = given_text(source, target, fields, on_error)
    languages = languages_of(text, source_language, target_language)

    from tformer_cli.export.extend import extend_run

    directory = chosen_run(run, checkpoint)
    tag = extend_run(
        directory, RunDirectory(output), text, languages, like=like, checkpoint=checkpoint
    )
    tell(f"{output}: written; sources into {languages[1]} begin with {tag}")
    again = output.with_name(f"{output.name}-{languages[1]}")
    suggest("train", output / "config.yaml", "--init-from", output, "--run", again)
