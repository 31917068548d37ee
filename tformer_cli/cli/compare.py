"""`tformer compare`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.cli.entry import refuse_torchrun
from tformer_cli.cli.options import (
    DeviceOption,
    JsonOption,
    WorkersOption,
    chosen_metrics,
    chosen_run,
)
from tformer_cli.cli.plot import check_page
from tformer_cli.cli.printing import extend_bar, table, tell, tell_json, tell_stderr, warn
from tformer_cli.cli.streams import check_outputs
from tformer_cli.config.schema.config import BleuTokenizer
from tformer_cli.errors import quantity
from tformer_cli.terminal import progress_bar

if TYPE_CHECKING:
    from tformer_cli.evaluation.compare import Comparison


def compare(
    systems: Annotated[
        list[Path],
        typer.Argument(
            metavar="SYSTEM",
            help="Run folders, or files of translations; the first is the baseline.",
            show_default=False,
        ),
    ],
    test: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A test set of the runs, or valid. Default: their only test set, or valid.",
        ),
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option(
            "--reference",
            metavar="FILE",
            help="References of files of translations; repeatable, for several of each line.",
        ),
    ] = None,
    bleu: Annotated[bool, typer.Option("--bleu", help="BLEU; with chrF the default.")] = False,
    chrf: Annotated[bool, typer.Option("--chrf", help="chrF.")] = False,
    ter: Annotated[bool, typer.Option("--ter", help="Translation edit rate.")] = False,
    tokenize: Annotated[
        BleuTokenizer | None,
        typer.Option(
            metavar="NAME",
            help="BLEU's tokenizer, as in evaluation.bleu.tokenize. Default: the runs'; 13a for "
            "files.",
        ),
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Case-insensitive BLEU, whatever the runs have.")
    ] = False,
    resamples: Annotated[
        int, typer.Option(min=1, help="Resamples of the bootstrap; shuffles of the randomization.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=1, help="Seed of both tests.")] = 12345,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PAGE.html",
            help="Also write an HTML page of two systems, with the sentences that differ most.",
        ),
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
) -> None:
    """Compare systems with a baseline, and test the difference.

    Runs translate as in `tformer eval`, whose translations are used where there are some. Both
    tests are paired: bootstrap resampling (Koehn 2004), and approximate randomization (Riezler and
    Maxwell 2005). A difference is significant if both p-values are below 0.05.

    Example: tformer compare runs/one runs/other --output page.html

    Example: tformer compare one.txt other.txt --reference test.de
    """
    check_page(output)
    for option, files in (("SYSTEM", systems), ("--reference", references or ())):
        for file in files:
            check_outputs({"--output": output}, {option: file})
    for path in systems:
        if path.is_dir() or path.suffix in (".yaml", ".yml"):
            chosen_run(path)

    from tformer_cli import api

    refuse_torchrun("compare")
    with progress_bar("line") as bar:
        comparison = api.compare(
            systems,
            test=test,
            references=references or (),
            metrics=chosen_metrics(bleu, chrf, ter) or ["bleu", "chrf"],
            tokenize=tokenize,
            lowercase=lowercase,
            resamples=resamples,
            seed=seed,
            output=output,
            device=device,
            workers=workers,
            log=tell_stderr,
            on_start=partial(extend_bar, bar),
            on_done=bar.update,
            on_warning=warn,
        )
    if as_json:
        tell_json(comparison.as_json())
    else:
        tell(_report(comparison))
        if output is not None:
            tell(f"{output}: written")


def _report(comparison: "Comparison") -> str:
    """Return the scores as a table for each metric, and what they say in a sentence each."""
    from tformer_cli.evaluation.tables import TEST_HEAD, letters, score_row, verdict

    names = [scored.system for scored in next(iter(comparison.scores.values()))]
    letter_of = dict(zip(names, letters(), strict=False))
    blocks = [
        f"{comparison.text}: {quantity(comparison.num_sentences, 'sentence')}, "
        f"{quantity(comparison.num_references, 'reference')}; "
        f"{quantity(comparison.resamples, 'resample')}, seed {comparison.seed}\n"
        f"{table([[letter_of[name], name] for name in names], '<<')}"
    ]
    sentences = []
    for systems in comparison.scores.values():
        score = systems[0].score
        rows = [score_row(letter_of[scored.system], scored) for scored in systems]
        cells = table([TEST_HEAD, *rows], "<" + ">" * 8)
        blocks.append(f"{score.name}  ({score.signature})\n{cells}")
        sentences += [verdict(letter_of[one.system], one) for one in systems[1:]]
    return "\n\n".join([*blocks, "\n".join(sentences)])
