"""`tformer vocab`."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.cli.messages import suggest
from tformer_cli.cli.options import SetOption
from tformer_cli.config.load import dump_config, load_with_texts
from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import make_directory, storage_errors, write_text
from tformer_cli.storage.run_directory import RunDirectory, run_of_config

if TYPE_CHECKING:
    from tformer_cli.corpus.statistics import VocabularyReport


def vocab(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as configs/demo.yaml.")],
    run: Annotated[
        Path | None,
        typer.Option(
            help="The run folder. Default: runs/NAME for NAME.yaml, or the run whose own "
            "config.yaml it is.",
            show_default=False,
        ),
    ] = None,
    settings: SetOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a vocabulary that already exists.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Build the vocabulary of a run and show how well it fits the training and validation text.

    `tformer train` takes it over where text, tokenizer and seed are the same (give it the same
    --set), and builds its own otherwise; this command is for looking first.

    Example: tformer vocab configs/demo.yaml --set tokenizer.vocab_size=4000 --force
    """
    parsed = load_with_texts(config, settings or [])
    data = parsed.data
    run_directory = run_of_config(config, run)
    _check_replaceable(run_directory, force=force)

    # torch takes a second to import: only those who build wait for it.
    from tformer_cli.corpus.statistics import report_sides
    from tformer_cli.training.pretrained import PretrainedRun
    from tformer_cli.training.resume import locked
    from tformer_cli.training.setup import new_tokenizers, origin_of, save_tokenizers

    pretrained = PretrainedRun.of(parsed, run_directory)
    with storage_errors(run_directory.path):
        make_directory(run_directory.path)
    with locked(run_directory):
        # A training may have begun and ended meanwhile.
        _check_replaceable(run_directory, force=force)
        tokenizers = new_tokenizers(parsed, pretrained, log=lambda line: None)
        # A training that would build the same takes it, any other builds its own.
        origin = origin_of(parsed, pretrained, run_directory.stores)
        save_tokenizers(tokenizers, origin, run_directory)
        write_text(run_directory.config_file, dump_config(parsed))
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
    columns = {
        f"{text} {languages[side]}": report
        for text, sides in reports.items()
        for side, report in sides.items()
    }
    typer.echo(_table(columns))
    typer.echo(f"vocabulary: {run_directory.tokenizer}")
    changes = [word for setting in settings or [] for word in ("--set", setting)]
    suggest("train", config, *(() if run is None else ("--run", run)), *changes)


def _check_replaceable(run: RunDirectory, *, force: bool) -> None:
    """Refuse to take away a vocabulary that somebody may need.

    Raises:
        UsageError: there is one, and no leave to replace it, or a model that goes with it; or the
            folder is somebody else's.
    """
    from tformer_cli.training.resume import check_run_folder

    check_run_folder(run)
    # The config comes last: without it, a kill cut short what is there.
    if not run.tokenizer.exists() or not run.config_file.exists():
        return
    if run.pointed("last") is not None:
        raise UsageError(
            str(run.tokenizer),
            "belongs to the model that this run has trained",
            remedy="name another folder with --run",
        )
    if not force:
        raise UsageError(
            str(run.tokenizer),
            "already exists",
            remedy="add --force to replace it, or name another folder with --run",
        )


def _table(reports: dict[str, "VocabularyReport"]) -> str:
    """Return one column a report, numbers flush right."""
    columns = [_cells(report) for report in reports.values()]
    rows = [["", *reports]]
    rows += [[label, *(cells[label] for cells in columns)] for label in columns[0]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def _cells(report: "VocabularyReport") -> dict[str, str]:
    return {
        "vocabulary size": f"{report.vocabulary_size:,}",
        "sentences": f"{report.num_sentences:,}",
        "tokens": f"{report.num_tokens:,}",
        "characters covered": f"{report.coverage:.3%}",
        "unknown tokens": f"{report.unknown_rate:.3%}",
        "byte tokens": f"{report.byte_rate:.3%}",
        "tokens per sentence": f"{report.lengths.mean:.1f}",
        "  median": f"{report.lengths.median:,}",
        "  99th percentile": f"{report.lengths.p99:,}",
        "  longest": f"{report.lengths.longest:,}",
        "characters per token": f"{report.characters_per_token:.2f}",
    }
