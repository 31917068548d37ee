"""`tformer plot`, `tformer heatmap` and `tformer report`."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.options import (
    CheckpointOption,
    DeviceOption,
    FromOption,
    LeadingRunArgument,
    RunArgument,
    ToOption,
    WorkersOption,
    chosen_run,
)
from tformer_cli.cli.printing import extend_bar, tell, tell_json, tell_stderr, warn
from tformer_cli.errors import UsageError
from tformer_cli.plotting import curves
from tformer_cli.plotting import heatmap as picture
from tformer_cli.terminal import progress_bar

DEFAULT_CURVES = Path("curves.png")
# A page needs no extra.
DEFAULT_HEATMAP = Path("heatmap.html")
DEFAULT_REPORT = Path("report.html")

PartName = Literal["all", "encoder", "decoder", "cross", "positions"]


def plot(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Run folders, such as runs/demo; without one the newest under runs/.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"Picture: .png, .svg or .pdf. Default: {DEFAULT_CURVES}.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        curves.Axis,
        typer.Option(help="Unit of x; hours count optimizer steps and waiting for batches."),
    ] = "step",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object of the points; draw only with --output."
        ),
    ] = False,
) -> None:
    """Draw the loss, validation BLEU, learning rate, gradient norm and throughput of runs.

    Training and validation losses are without label smoothing, so they are comparable.

    Example: tformer plot runs/demo

    Example: tformer plot runs/one runs/other --by hours --output curves.svg
    """
    if output is not None and output.suffix.lower() not in curves.FIGURE_FORMATS:
        raise UsageError("--output", "must end in .png, .svg or .pdf", got=str(output))
    given: list[Path | None] = [*runs] if runs else [None]
    folders = [chosen_run(run, "last") for run in given]
    file = output if as_json else output or DEFAULT_CURVES
    histories = curves.plot_runs(folders, by, file)
    if as_json:
        content = [{"run": str(history.run), "curves": history.curves} for history in histories]
        tell_json({"by": by, "runs": content}, indent=None)
    else:
        typer.echo(f"{file}: written")


def heatmap(
    runs: LeadingRunArgument = None,
    *,
    sentence: Annotated[
        str, typer.Argument(metavar="SENTENCE", help="Source sentence, in quotes.")
    ],
    target: Annotated[
        str | None, typer.Option(help="Its translation. Default: that of the run's search.")
    ] = None,
    to: ToOption = None,
    source_language: FromOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"Interactive .html, or .png or .svg. Default: {DEFAULT_HEATMAP}.",
            show_default=False,
        ),
    ] = None,
    part: Annotated[
        PartName, typer.Option(help="Self-attention, cross-attention, or position tables.")
    ] = "all",
    layer: Annotated[int | None, typer.Option(min=1, help="Only this layer, from 1.")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Only this head, from 1.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; draw only if there is --output.")
    ] = False,
    checkpoint: CheckpointOption = "best",
) -> None:
    """Draw the attention maps of a sentence, by layer and head.

    Rows are queries, columns keys; a row sums to 1. Below them are the position tables: position
    embeddings, rotary embeddings and attention biases.

    Example: tformer heatmap "The girl has danced with us."

    Example: tformer heatmap runs/demo "The girl has danced with us." --part cross -o dance.png
    """
    run = chosen_run(_one_run(runs or [], sentence), checkpoint)
    file = output if as_json else output or DEFAULT_HEATMAP
    if file is not None and file.suffix.lower() not in picture.SUFFIXES:
        raise UsageError("--output", "must end in .png, .svg or .html", got=str(file))

    from tformer_cli.storage.trained_model import load_trained_network
    from tformer_cli.translate.sentence_maps import sentence_maps

    trained = load_trained_network(run, checkpoint)
    maps = sentence_maps(
        trained.model,
        trained.tokenizers,
        trained.config,
        sentence,
        target,
        to=to,
        source_language=source_language,
    ).select(part, layer, head)
    if file is not None and (missing := picture.save_heatmap(maps, file)) is not None:
        warn(missing)
    if as_json:
        tell_json(maps.as_plain(), indent=None)
    else:
        typer.echo(f"{file}: written")


def report(
    run: RunArgument = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="valid, test, or the name of a test set. Default: the only test set, or valid."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PAGE.html",
            help=f"The page. Default: {DEFAULT_REPORT}.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object of the page; write only with --output."),
    ] = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Write a page of a run: scores, curves, telling sentences.

    It is one HTML file. Scores have confidence intervals and are broken down by length and by the
    rarest word. Sentences are the best, the worst, those that lose a number, a name or a negation,
    copies, loops and untranslated ones. Translations of `tformer eval` are used where there are
    some.

    Example: tformer report runs/demo

    Example: tformer report runs/demo --split valid --output valid.html
    """
    check_page(output)
    file = output if as_json else output or DEFAULT_REPORT
    run_directory = chosen_run(run)

    from tformer_cli.evaluation import report as reports

    refuse_torchrun("report")
    with progress_bar("line") as bar:
        result = reports.report(
            run_directory.path,
            file,
            split=split,
            device=device,
            workers=workers,
            log=tell_stderr,
            on_start=partial(extend_bar, bar),
            on_done=bar.update,
            on_warning=warn,
        )
    if as_json:
        tell_json(result.as_json(), indent=None)
        return
    for scored in result.scores.values():
        low, high = scored.interval
        tell(f"{scored.score}\n95% interval: {low:.2f}-{high:.2f}")
    tell("\n".join(f"{name}: {len(findings):,}" for name, findings in result.defects.items()))
    tell(f"{file}: written")


def check_page(file: Path | None) -> None:
    """Refuse the file of an HTML page that is named as something else."""
    if file is not None and file.suffix.lower() != ".html":
        raise UsageError("--output", "must end in .html", got=str(file))


def _one_run(runs: Sequence[Path], sentence: str) -> Path | None:
    """Return the run of the command line, if any; unquoted words of a sentence are none."""
    if len(runs) > 1:
        words = " ".join([*map(str, runs), sentence])
        raise UsageError("SENTENCE", "must be one argument", got=words, remedy="put it in quotes")
    if not runs and os.path.isdir(sentence):
        got = f"the folder {sentence}"
        raise UsageError("SENTENCE", "is missing", got=got, remedy="add the sentence, in quotes")
    return runs[0] if runs else None
