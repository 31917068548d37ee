"""`tformer translate`."""

import contextlib
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tformer_cli.choices import LongLines, Quantization
from tformer_cli.cli.entry import extend, is_main_process, tell_stderr, warn
from tformer_cli.cli.line_formats import (
    DefectTally,
    alignments_line,
    defects_line,
    json_line,
    numbered_lines,
    text_line,
)
from tformer_cli.cli.options import (
    DROP_ONE,
    BackendOption,
    BeamOption,
    CandidatesOption,
    CheckpointOption,
    DeviceOption,
    EnsembleOption,
    LengthPenaltyOption,
    MbrOption,
    PrecisionOption,
    QuietOption,
    SearchSetOption,
    TagOption,
    ToOption,
    WorkersOption,
    chosen_mbr,
    chosen_run,
)
from tformer_cli.cli.streams import (
    STDIN,
    STDOUT,
    Recorded,
    check_outputs,
    input_windows,
    line_writer,
    output_fingerprint,
    reject_pipes,
    run_and_sentence,
)
from tformer_cli.errors import UsageError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.terminal import progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm

    from tformer_cli.distributed import World
    from tformer_cli.translate.windows import Output

NOWHERE = Path(os.devnull)


def translate(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [SENTENCE]",
            help="Run folder, by default the newest under runs/; and a sentence in quotes, by "
            "default --input or stdin.",
            show_default=False,
        ),
        Recorded.AS_MODEL,
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            help="Source text, plain or .gz, or a document, such as .html or .srt. Default: stdin.",
        ),
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for the translations. Default: stdout."),
        Recorded.NOT,
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(help="Key of the text in each object of a .jsonl document. Default: text."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the same command from OUTPUT.partial."),
        Recorded.NOT,
    ] = False,
    to: ToOption = None,
    beam: Annotated[BeamOption, Recorded.AS_SEARCH] = None,
    length_penalty: Annotated[LengthPenaltyOption, Recorded.AS_SEARCH] = None,
    settings: Annotated[SearchSetOption, Recorded.AS_SEARCH] = None,
    mbr: MbrOption = None,
    candidates: CandidatesOption = None,
    ensemble: Annotated[EnsembleOption, Recorded.AS_MODEL] = None,
    nbest: Annotated[
        int, typer.Option(min=1, help="Translations per line, as `line ||| translation ||| score`.")
    ] = 1,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object per line, with tokens, scores, alignments, defects, confidence; "
            "or the kind and counts of a document.",
        ),
    ] = False,
    alignments_file: Annotated[
        Path | None,
        typer.Option("--alignments", help="File for word alignments: a line of `0-0 1-2` each."),
    ] = None,
    prefix_file: Annotated[
        Path | None,
        typer.Option("--prefixes", help="Forced beginnings, a line for each line of --input."),
    ] = None,
    tags: TagOption = None,
    banned: Annotated[
        list[str] | None,
        typer.Option("--ban", help="Word or phrase that no translation contains; repeatable."),
    ] = None,
    constraints_file: Annotated[
        Path | None,
        typer.Option(
            "--constraints",
            help="Required phrases, separated by tabs, a line for each line of --input. A line "
            "that is split can have none.",
        ),
    ] = None,
    terminology_file: Annotated[
        Path | None,
        typer.Option(
            "--terminology",
            help="Lines of a source term, a tab and a target term, which is required where the "
            "line, or the piece of a split line, contains the source term.",
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Translate lines with defects again, and take a translation that has fewer.",
        ),
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Spans that each translation keeps as they are: addresses, placeholders, numbers, "
            "or a regular expression; repeatable.",
        ),
    ] = None,
    long_lines: Annotated[
        LongLines,
        typer.Option(help="What to do with a line longer than any training line."),
    ] = "split",
    max_source_length: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum tokens of a line. Default: data.filters.max_length."),
    ] = None,
    max_source_sentences: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum sentences of a line that is not split. Default: what 99% of the "
            "training lines do not exceed.",
        ),
    ] = None,
    checkpoint: Annotated[CheckpointOption, Recorded.AS_MODEL] = "best",
    device: Annotated[DeviceOption, Recorded.NOT] = "auto",
    precision: PrecisionOption = None,
    workers: Annotated[WorkersOption, Recorded.NOT] = None,
    backend: BackendOption = "auto",
    quantization: Annotated[
        Quantization | None,
        typer.Option(help="Number format of CTranslate2's matrices. Default: float32."),
    ] = None,
    quiet: Annotated[QuietOption, Recorded.NOT] = False,
) -> None:
    """Translate text line by line: n lines in, n lines out, in the same order.

    Lines of stdin are translated as they arrive. A long line is split at sentence ends and its
    translations are joined, with a warning on stderr. A document keeps all that is not its text.

    Example: tformer translate runs/demo "The girl has danced with us."

    Example: tformer translate runs/demo --input test.en --output test.de --beam 5

    Example: tformer translate runs/demo --input crawl.en.gz --output crawl.de --resume

    Example: tformer translate runs/demo --input film.srt --output film.de.srt

    Example: tformer translate runs/demo -i test.en --backend ctranslate2 --quantization int8
    """
    run, sentence = run_and_sentence(words or [])
    run_directory = chosen_run(run, checkpoint)

    from tformer_cli.distributed import process_group
    from tformer_cli.documents.document import is_document
    from tformer_cli.translate.documents import translate_document
    from tformer_cli.translate.options import SearchOptions, TranslateOptions
    from tformer_cli.translate.preprocess import count_input_lines, read_terminology
    from tformer_cli.translate.translator import Translator
    from tformer_cli.translate.windows import translate_shared

    outputs = {"--output": output_file, "--alignments": alignments_file}
    inputs = {
        "--input": input_file,
        "--prefixes": prefix_file,
        "--constraints": constraints_file,
        "--terminology": terminology_file,
    }
    _check_usage(sentence, inputs, outputs, resume, workers, backend)
    has_document = input_file is not None and is_document(input_file)
    if has_document:
        for_lines = {
            "--resume": resume,
            "--nbest": nbest > 1,
            "--alignments": alignments_file is not None,
            "--prefixes": prefix_file is not None,
            "--constraints": constraints_file is not None,
        }
        _check_document(str(input_file), output_file, for_lines)
    elif field is not None:
        what = "has no effect without a document"
        raise UsageError("--field", what, got=field, remedy="leave it out")
    files = input_file, prefix_file, constraints_file
    # Before the first line is translated: it finds invalid text and files of unequal length.
    num_lines = None if has_document else count_input_lines(*files)
    translator = Translator.load(
        run_directory.path,
        to=to,
        ensemble=ensemble or (),
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        backend=backend,
        quantization=quantization,
        workers=workers,
        long_lines=long_lines,
        max_source_length=max_source_length,
        max_source_sentences=max_source_sentences,
        log=tell_stderr,
    )
    translator.tag_ids(tags or ())  # refuses them before a prompt, or an output
    search = SearchOptions(beam, length_penalty, settings or ()).apply(translator.config)
    options: TranslateOptions = {
        "decoding": search,
        "mbr": chosen_mbr(mbr, candidates),
        "tags": tags or (),
        "banned": banned or (),
        "terminology": read_terminology(terminology_file, translator.languages[0]),
        "repair": repair,
        "keep": keep or (),
        "on_warning": warn,
    }
    if input_file is not None and output_file is not None and is_document(input_file):
        with progress_bar("sentence") as bar:
            options["on_done"] = bar.update
            on_start = partial(extend, bar)
            report = translate_document(
                translator, input_file, output_file, field=field, on_start=on_start, **options
            )
        if as_json:
            typer.echo(json.dumps(report._asdict()))
        return
    of_lines: TranslateOptions = {
        **options,
        "scored": as_json or nbest > 1,
        "aligned": alignments_file is not None or (as_json and translator.load_aligner is not None),
        "inspected": as_json,
    }
    if input_file is not None:
        of_lines["name"] = str(input_file)
    translate_windows = partial(
        translator.translate_windows,
        count=nbest,
        has_phrases=constraints_file is not None,
        **of_lines,
    )
    fingerprint = None
    if resume:
        runs = [run_directory, *map(RunDirectory, ensemble or ())]
        fingerprint = output_fingerprint(context, runs, checkpoint, search)
    with (
        process_group(translator.device) as world,
        _output(output_file, fingerprint, world) as output,
        _output(alignments_file or NOWHERE, None, world) as links,
        _progress_bar(num_lines, output.num_lines) as bar,
    ):
        num_done = world.all_reduce_max(output.num_lines)
        texts = [(output, json_line if as_json else numbered_lines if nbest > 1 else text_line)]
        if alignments_file is not None:
            texts.append((links, alignments_line))
        tally = DefectTally()
        if as_json or repair or keep:
            texts.append((tally, defects_line))
        translate_shared(
            translate_windows,
            input_windows(sentence, files, num_done, translator, world.size),
            texts,
            world,
            num_done,
            on_done=bar.update,
            on_written=lambda num_written: bar.update(num_written - bar.n),
        )
    if tally.num_lines and is_main_process():
        tell_stderr(str(tally))


def _check_usage(
    sentence: str | None,
    inputs: Mapping[str, Path | None],
    outputs: Mapping[str, Path | None],
    resume: bool,
    workers: int | None,
    backend: str,
) -> None:
    """Check files, and options that contradict, need or exclude each other."""
    from tformer_cli.process import num_processes

    check_outputs(outputs, {**inputs, "--input": inputs["--input"] or STDIN})
    has_input = inputs["--input"] is not None
    if sentence is not None and has_input:
        raise UsageError("--input", "contradicts a sentence", remedy=DROP_ONE)
    for option in ("--prefixes", "--constraints"):
        if inputs[option] is not None and not has_input:
            raise UsageError(option, "needs --input, line by line", remedy="name that file")
    if resume and (not has_input or outputs["--output"] in (None, STDOUT)):
        raise UsageError("--resume", "needs --input and --output", remedy="name both files")
    if resume and outputs["--alignments"] is not None:
        remedy = "use --json, which holds them too"
        raise UsageError("--alignments", "contradicts --resume", remedy=remedy)
    is_parallel = num_processes() > 1
    if is_parallel and not has_input:
        what = "is required under torchrun: stdin cannot be shared"
        raise UsageError("--input", what, remedy="name a file")
    if is_parallel and workers not in (None, 1):
        what = "must be 1 under torchrun, which starts the processes"
        raise UsageError("--workers", what, got=str(workers), remedy="leave it out")
    if backend == "ctranslate2":
        # Even for an empty file: the first line with a demand may come late.
        for option, file in inputs.items():
            if option != "--input" and file is not None:
                what = "has no exact counterpart in CTranslate2"
                raise UsageError(option, what, remedy="use another --backend")
    if is_parallel or resume:
        reject_pipes(inputs)


def _check_document(name: str, output: Path | None, for_lines: Mapping[str, bool]) -> None:
    """Check that a document has an output, one process, and no options that are for lines."""
    from tformer_cli.process import num_processes

    for option, is_given in for_lines.items():
        if is_given:
            remedy = "leave it out, or use < FILE for lines"
            raise UsageError(option, "has no effect on a document", got=name, remedy=remedy)
    if output is None:
        raise UsageError("--output", "is required for a document", remedy="name a file")
    if num_processes() > 1:
        what = "must be lines under torchrun, which shares them"
        raise UsageError("--input", what, got=name, remedy="drop torchrun")


def _output(
    file: Path | None, fingerprint: Mapping[str, object] | None, world: "World"
) -> "contextlib.AbstractContextManager[Output]":
    """Open an output of the main process: a resumable file if it has a fingerprint."""
    from tformer_cli.translate.windows import resumable_output

    if fingerprint is not None and file is not None:
        return resumable_output(file, fingerprint, world)
    return line_writer(file if world.is_main_process else NOWHERE)


def _progress_bar(num_lines: int | None, num_done: int) -> "tqdm[NoReturn]":
    """Return a progress bar over a number of lines; it is hidden if there is none."""
    is_shown = num_lines is not None and is_main_process()
    return progress_bar("line", total=num_lines, initial=num_done, is_shown=is_shown)
