"""`tformer distill` and `tformer back-translate`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tformer_cli.cli.entry import is_main_process
from tformer_cli.cli.options import (
    BackendOption,
    BeamOption,
    CandidatesOption,
    CheckpointOption,
    DeviceOption,
    EnsembleOption,
    FromOption,
    JsonOption,
    LengthPenaltyOption,
    MbrOption,
    PrecisionOption,
    SearchSetOption,
    ToOption,
    WorkersOption,
    chosen_mbr,
    chosen_run,
)
from tformer_cli.cli.printing import extend_bar, tell, tell_json, tell_stderr, warn
from tformer_cli.config.load import to_yaml, training_item
from tformer_cli.errors import quantity
from tformer_cli.terminal import progress_bar

if TYPE_CHECKING:
    from tformer_cli.translate.synthesis import RealSide, Synthesis

# Line numbers that are printed; --json has all.
MAX_SHOWN_LINES = 10


def _command(real: "RealSide", description: str) -> Callable[..., None]:
    """Return the command whose pairs have a real side."""

    def command(
        teachers: Annotated[
            list[Path],
            typer.Argument(
                metavar="TEACHER",
                help="Run folders, or folders for CTranslate2: exports, or converted models such "
                "as OPUS-MT with source.spm and target.spm. All of one direction.",
                show_default=False,
            ),
        ],
        input_file: Annotated[
            Path,
            typer.Option("--input", "-i", help=f"The real {real} text, plain or .gz."),
        ],
        output: Annotated[
            str,
            typer.Option(
                "--output",
                "-o",
                metavar="PREFIX",
                help="Write PREFIX.source, PREFIX.target and PREFIX.jsonl; with PREFIX.gz, "
                "PREFIX.source.gz and so on.",
            ),
        ],
        to: ToOption = None,
        source_language: FromOption = None,
        ensemble: EnsembleOption = None,
        nbest: Annotated[
            int, typer.Option(min=1, help="Pairs of a line and teacher; with --mbr, of a line.")
        ] = 1,
        mbr: MbrOption = None,
        candidates: CandidatesOption = None,
        tags: Annotated[
            list[str] | None,
            typer.Option(
                "--tag",
                metavar="NAME",
                help="Tag of the teachers' training text (data.train) that each line begins with; "
                "repeatable.",
            ),
        ] = None,
        beam: BeamOption = None,
        length_penalty: LengthPenaltyOption = None,
        settings: SearchSetOption = None,
        drop_duplicates: Annotated[
            bool, typer.Option("--drop-duplicates", help="Drop a pair if an earlier one is equal.")
        ] = False,
        checkpoint: CheckpointOption = "best",
        device: DeviceOption = "auto",
        precision: PrecisionOption = None,
        workers: WorkersOption = None,
        backend: BackendOption = "auto",
        as_json: JsonOption = False,
    ) -> None:
        for run in (*teachers, *(ensemble or ())):
            chosen_run(run, checkpoint)

        from tformer_cli.translate.options import SearchOptions
        from tformer_cli.translate.synthesis import synthesize

        with progress_bar("line") as bar:
            result = synthesize(
                teachers,
                input_file,
                output,
                real=real,
                to=to,
                source_language=source_language,
                ensemble=ensemble or (),
                count=nbest,
                mbr=chosen_mbr(mbr, candidates),
                tags=tags or (),
                decoding=SearchOptions(beam, length_penalty, settings or ()),
                drop_duplicates=drop_duplicates,
                checkpoint=checkpoint,
                device=device,
                precision=precision,
                backend=backend,
                workers=workers,
                log=tell_stderr,
                on_start=partial(extend_bar, bar),
                on_done=bar.update,
                on_warning=warn,
            )
        if is_main_process():
            _print(result, input_file, as_json)

    command.__doc__ = description
    return command


def _print(result: "Synthesis", input_file: Path, as_json: bool) -> None:
    if as_json:
        content = {
            "num_lines": result.num_lines,
            "num_pairs": sum(result.num_pairs.values()),
            "by_teacher": result.num_pairs,
            "omitted": result.omitted,
            "record": str(result.record),
            "train": training_item(result.text),
        }
        tell_json(content)
        return
    for teacher, num_pairs in result.num_pairs.items():
        tell(f"{teacher}: {quantity(num_pairs, 'pair')} of {quantity(result.num_lines, 'line')}")
    if result.omitted:
        numbers = ", ".join(map(str, result.omitted[:MAX_SHOWN_LINES]))
        more = ", ..." if len(result.omitted) > MAX_SHOWN_LINES else ""
        count = len(result.omitted)
        lines = "1 line has no pair" if count == 1 else f"{count:,} lines have no pair"
        tell(f"{input_file}: {lines} ({numbers}{more})")
    tell(f"{result.record}: line, teacher, rank and score of each pair")
    tell("below data.train of a config:")
    tell(to_yaml([training_item(result.text)]).rstrip("\n"))


distill = _command(
    "source",
    """Translate a text into training pairs with real sources.

    This is sequence-level knowledge distillation (Kim and Rush 2016). Each teacher gives the best
    translation of each line, or --nbest of them; --mbr chooses among those of all teachers.
    --ensemble makes one teacher of several runs. Re-running an interrupted command resumes it. A
    line without a translation, such as an empty one, has no pair and is named.

    Example: tformer distill runs/a runs/b --input news.en --output distilled --mbr chrf

    Example: tformer distill runs/a --ensemble runs/b -i news.en.gz -o distilled.gz
    """,
)
back_translate = _command(
    "target",
    """Translate a text into training pairs with real targets.

    This is back-translation (Sennrich et al. 2016): the teachers translate from the target language
    into the source language. All else is as in `tformer distill`. The lines for data.train have a
    tag that each source will begin with (Caswell et al. 2019).

    Example: tformer back-translate runs/de-en --input news.de --output back

    Example: tformer back-translate runs/de-en -i news.de -o back --set decoding.kind=sample

    Example: tformer back-translate opus-de-en -i news.de.gz -o back.gz
    """,
)
