"""`tformer train`."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.cli.messages import suggest
from tformer_cli.cli.options import DeviceOption, SetOption, reject_usage
from tformer_cli.config.load import load_with_texts
from tformer_cli.config.schema.model import MaskedEncoderConfig
from tformer_cli.errors import UsageError
from tformer_cli.storage.run_directory import RunDirectory, run_of_config


def train(
    config: Annotated[
        Path,
        typer.Argument(help="A YAML file, such as configs/demo.yaml, or a run folder to resume."),
    ],
    run: Annotated[
        Path | None,
        typer.Option(
            help="The run folder. Default: runs/NAME for NAME.yaml, or the run whose own "
            "config.yaml it is.",
            show_default=False,
        ),
    ] = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what the run folder holds and begin again.")
    ] = False,
    init_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Begin with the tokenizers and the last weights of another run, with its own "
            "schedule: more steps, another learning rate, other text.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only check all files, take a few steps at the largest batch, and say how much "
            "time, memory and disk the training will take.",
        ),
    ] = False,
    find_batch: Annotated[
        bool,
        typer.Option(
            "--find-batch",
            help="Only search the largest training.batch_tokens that fits into memory.",
        ),
    ] = False,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="GIB",
            help="Memory that --find-batch may fill. Default: all of a GPU, 80% of the free RAM.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (--dry-run, --find-batch).")
    ] = False,
) -> None:
    """Train a model, or go on with a run that was interrupted.

    The vocabulary of `tformer vocab` is taken over where text, tokenizer and seed are the same, and
    otherwise built. The same command again goes on from the last
    checkpoint, exactly as if there had been no break. --dry-run and --find-batch leave nothing
    behind.

    Example: tformer train configs/demo.yaml --set training.max_steps=500 --run runs/short

    Example: tformer train runs/demo

    Example: tformer train configs/demo.yaml --init-from runs/demo --run runs/demo-more

    Example: tformer train configs/demo.yaml --dry-run

    Example: tformer train configs/demo.yaml --find-batch --memory-limit 8
    """
    _check_usage(fresh, dry_run, find_batch, memory_limit, as_json)
    config = _config_file(config)
    parsed = load_with_texts(config, settings or [])
    if init_from is not None:
        begun = replace(parsed.training, init_from=init_from.resolve())
        parsed = replace(parsed, training=begun)
    run_directory = run_of_config(config, run)

    # torch takes a second to import: only those who train wait for it.
    from tformer_cli.device import resolve_device

    place = resolve_device(device)
    if dry_run:
        from tformer_cli.training.dry_run import dry_run as rehearse

        taken = rehearse(parsed, run_directory, device=place)
        typer.echo(json.dumps(taken.as_json(), indent=2) if as_json else str(taken))
    elif find_batch:
        from tformer_cli.training.find_batch_size import find_batch_size as search

        found = search(parsed, run_directory, device=place, memory_limit=memory_limit)
        use = f"use it: --set {found.setting}"
        typer.echo(json.dumps(found.as_json(), indent=2) if as_json else f"{found}\n{use}")
    else:
        from tformer_cli import api

        api.train(parsed, run_directory.path, device=device, fresh=fresh)
        is_first = os.environ.get("RANK", "0") == "0"
        if is_first and not isinstance(parsed.model, MaskedEncoderConfig):
            suggest("eval" if parsed.data.test else "translate", run_directory.path)


def _config_file(path: Path) -> Path:
    """Return a config, or that of a run folder, whose training is resumed by it.

    Raises:
        UsageError: it is another folder.
    """
    if not path.is_dir():
        return path
    run = RunDirectory(path)
    if not run.tokenizer.is_dir() or not run.config_file.is_file():
        raise UsageError(
            str(path), "is a folder and not a run", remedy="name a YAML file, or a run to resume"
        )
    return run.config_file


def _check_usage(
    fresh: bool, dry_run: bool, find_batch: bool, memory_limit: float | None, as_json: bool
) -> None:
    """Refuse options that contradict each other, or that nothing would come of.

    Raises:
        UsageError: there are such.
    """
    both = "leave one of them out"
    reject_usage("--find-batch", "contradicts --dry-run", when=dry_run and find_batch, remedy=both)
    is_trial = dry_run or find_batch
    reject_usage(
        "--fresh",
        f"has no effect with {'--dry-run' if dry_run else '--find-batch'}",
        when=fresh and is_trial,
        remedy="leave it out",
    )
    reject_usage(
        "--memory-limit",
        "has no effect without --find-batch",
        when=memory_limit is not None and not find_batch,
        got=memory_limit,
        remedy="add --find-batch",
    )
    reject_usage(
        "--memory-limit",
        "must be a number of GiB",
        when=memory_limit is not None and not math.isfinite(memory_limit),
        got=memory_limit,
        remedy="write 8",
    )
    reject_usage(
        "--json",
        "has no effect without --dry-run or --find-batch",
        when=as_json and not is_trial,
        remedy="leave it out",
    )
