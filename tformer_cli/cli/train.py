"""`tformer train`, `tformer vocab` and `tformer average`."""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from tformer_cli.cli.entry import is_main_process, refuse_torchrun
from tformer_cli.cli.options import (
    DROP_ONE,
    DeviceOption,
    JsonOption,
    QuietOption,
    RunArgument,
    RunOption,
    SetOption,
    chosen_run,
)
from tformer_cli.cli.printing import suggest, suggest_use, table, tell, tell_json
from tformer_cli.config.load import load_config, load_with_texts
from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import json_number
from tformer_cli.storage.run_directory import RunDirectory, run_of_config

MAX_AVERAGED = 5
# What the table says of a `VocabularyReport`.
ROWS = {
    "vocabulary size": "{0.vocabulary_size:,}",
    "sentences": "{0.num_sentences:,}",
    "  sampled": "{0.num_sampled:,}",
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


def train(
    config_file: Annotated[
        Path,
        typer.Argument(
            metavar="config",
            help="A YAML file, such as configs/demo.yaml, or a run folder to resume.",
        ),
    ],
    run: RunOption = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard the run folder's training and start over.")
    ] = False,
    init_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Fine-tune: start from the tokenizers and latest weights of another run, with "
            "a new schedule.",
            show_default=False,
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Redraw curves of loss and validation BLEU, if stderr is a terminal."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only check all files, take a few steps at the largest batch, and estimate the "
            "time, memory and disk space of the training.",
        ),
    ] = False,
    find_batch: Annotated[
        bool,
        typer.Option(
            "--find-batch", help="Only find the largest training.batch_tokens that fits in memory."
        ),
    ] = False,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="GIB",
            help="Memory for --find-batch. Default: all of a GPU, 80% of the free RAM.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (--dry-run, --find-batch).")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Train a model, or resume an interrupted run.

    Re-running the command resumes from the last checkpoint, bit-exactly. A vocabulary built by
    `tformer vocab` is reused if text, tokenizer and seed match. --dry-run and --find-batch write
    nothing.

    Example: tformer train configs/demo.yaml --set training.max_steps=500 --run runs/short

    Example: tformer train runs/demo

    Example: tformer train configs/demo.yaml --init-from runs/demo --run runs/demo-more

    Example: tformer train configs/demo.yaml --dry-run

    Example: tformer train configs/demo.yaml --find-batch --memory-limit 8
    """
    _check_usage({"--fresh": fresh, "--live": live}, dry_run, find_batch, memory_limit, as_json)
    config_file = _config_file(config_file)
    config = load_with_texts(config_file, settings or [])
    if init_from is not None:
        training = replace(config.training, init_from=Path(os.path.realpath(init_from)))
        config = replace(config, training=training)
    run_directory = run_of_config(config_file, run)

    # torch takes a second to import.
    from tformer_cli.device import resolve_device

    torch_device = resolve_device(device)
    if dry_run:
        from tformer_cli.training.dry_run import dry_run as estimate

        report = estimate(config, run_directory, device=torch_device)
        if as_json:
            tell_json(report.as_json())
        else:
            typer.echo(str(report))
    elif find_batch:
        from tformer_cli.training.find_batch_size import find_batch_size as search

        batch = search(config, run_directory, device=torch_device, memory_limit=memory_limit)
        if as_json:
            tell_json(batch.as_json())
        else:
            typer.echo(f"{batch}\nuse it: --set {batch.setting}")
    else:
        from tformer_cli import api

        api.train(config, run_directory.path, device=device, fresh=fresh, live=live)
        if is_main_process():
            suggest_use(config, run_directory.path)


def _config_file(path: Path) -> Path:
    """Return a config file; of a run folder, which is resumed, its own."""
    if not path.is_dir():
        return path
    run = RunDirectory(path)
    if not run.tokenizer.is_dir() or not run.config_file.is_file():
        remedy = "name a YAML file, or a run to resume"
        raise UsageError(str(path), "is a folder and not a run", remedy=remedy)
    return run.config_file


def _check_usage(
    of_training: Mapping[str, bool],
    dry_run: bool,
    find_batch: bool,
    memory_limit: float | None,
    as_json: bool,
) -> None:
    if dry_run and find_batch:
        raise UsageError("--find-batch", "contradicts --dry-run", remedy=DROP_ONE)
    for option, is_given in of_training.items():
        if is_given and (dry_run or find_batch):
            trial = "--dry-run" if dry_run else "--find-batch"
            raise UsageError(option, f"has no effect with {trial}", remedy="leave it out")
    if memory_limit is not None and not find_batch:
        what = "has no effect without --find-batch"
        got = f"{memory_limit:g}"
        raise UsageError("--memory-limit", what, got=got, remedy="add --find-batch")
    if memory_limit is not None and not math.isfinite(memory_limit):
        got = f"{memory_limit:g}"
        raise UsageError("--memory-limit", "must be a number of GiB", got=got, remedy="write 8")
    if as_json and not (dry_run or find_batch):
        what = "has no effect without --dry-run or --find-batch"
        raise UsageError("--json", what, remedy="leave it out")


def average(
    run: RunArgument = None,
    last: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Average the newest N checkpoints. Default: {MAX_AVERAGED}, or fewer where those "
            "before them were dropped.",
            metavar="N",
        ),
    ] = None,
    best: Annotated[
        int | None, typer.Option(min=2, help="Average the best N checkpoints.", metavar="N")
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Average checkpoints of a run, and use the average if it is better.

    The average is scored on the validation text. If the run is finished and the average is better
    than its best checkpoint, `best` points to the average. It is a mean of the trained weights, not
    of averages that the training keeps of them.

    Example: tformer average runs/multi30k --last 5
    """
    if last and best:
        raise UsageError("--best", "contradicts --last", remedy=DROP_ONE)
    refuse_torchrun("average")
    which: Literal["last", "best"] = "last" if best is None else "best"
    run_directory = chosen_run(run, "last")

    from tformer_cli.device import resolve_device
    from tformer_cli.training.average import average_checkpoints, last_checkpoints

    # At least two, so that a single checkpoint is an error.
    count = best or last or max(2, len(last_checkpoints(run_directory)[:MAX_AVERAGED]))
    result = average_checkpoints(run_directory, which, count, device=resolve_device(device))
    members = [member.name for member in result.members]
    if as_json:
        numbers = {
            "score": result.score,
            "best_score": result.best_score,
            "loss": result.validation.likelihood.loss,
        }
        content = {
            "checkpoint": str(result.checkpoint),
            "members": members,
            **{key: None if x is None else json_number(x) for key, x in numbers.items()},
            "scores": [asdict(score) for score in result.validation.scores],
            "run_has_ended": result.run_has_ended,
            "is_best": result.is_best,
        }
        tell_json(content, indent=None)
        return
    tell(f"{result.checkpoint}: the mean of {', '.join(members)}")
    loss = f"loss {result.validation.likelihood.loss:.4f}"
    tell(f"valid: {', '.join([loss, *map(str, result.validation.scores)])}")
    if result.is_best:
        typer.echo("better than the best checkpoint before: best is the average now")
    elif result.run_has_ended:
        typer.echo("not better than the best checkpoint: best stays as it was")
    else:
        typer.echo(
            f"the run is not finished: best stays as it was; "
            f"use this one with --checkpoint {result.checkpoint.name}"
        )
    words = () if result.is_best else ("--checkpoint", result.checkpoint.name)
    suggest_use(load_config(run_directory.config_file), run_directory.path, *words)


def vocab(
    config_file: Annotated[
        Path,
        typer.Argument(
            metavar="config",
            help="A YAML file, such as configs/demo.yaml, or a run folder to report on.",
        ),
    ],
    run: RunOption = None,
    settings: SetOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing vocabulary.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build the vocabulary of a run and show how well it fits the training and validation text.

    Of a long text, tokens are counted in a sample of 100,000 lines. Of a run folder, the existing
    vocabulary is shown, and nothing is built.

    `tformer train` reuses the vocabulary if text, tokenizer and seed match (give it the same
    --set), and builds its own otherwise.

    Example: tformer vocab configs/demo.yaml --set tokenizer.vocab_size=4000 --force

    Example: tformer vocab runs/demo
    """
    is_built = config_file.is_dir()
    if is_built:
        _check_only_shown({"--run": run, "--set": settings, "--force": force})
        config_file = chosen_run(config_file).config_file
    config = load_with_texts(config_file, settings or [])
    run_directory = run_of_config(config_file, run)

    # torch takes a second to import.
    from tformer_cli.training.vocabulary import build_vocabulary, report_vocabulary

    if is_built:
        reports = report_vocabulary(run_directory.path)
    else:
        reports = build_vocabulary(config, run_directory.path, overwrite=force)
    if as_json:
        content = {
            text: {side: asdict(report) for side, report in sides.items()}
            for text, sides in reports.items()
        }
        tell_json({"tokenizer": str(run_directory.tokenizer), **content})
        return
    languages = {"source": config.data.source_language, "target": config.data.target_language}
    columns = [
        (f"{text} {languages[side]}", *(shown.format(report) for shown in ROWS.values()))
        for text, sides in reports.items()
        for side, report in sides.items()
    ]
    typer.echo(table(zip(("", *ROWS), *columns, strict=True), align="<" + ">" * len(columns)))
    typer.echo(f"vocabulary: {run_directory.tokenizer}")
    if not is_built:
        changes = [word for setting in settings or [] for word in ("--set", setting)]
        suggest("train", config_file, *(() if run is None else ("--run", run)), *changes)


def _check_only_shown(options: Mapping[str, object]) -> None:
    """Refuse options of a vocabulary to build."""
    for option, value in options.items():
        if value:
            remedy = "leave it out, or name a YAML file"
            raise UsageError(option, "has no effect with a run folder", remedy=remedy)
