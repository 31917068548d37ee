"""`tformer translate`."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tformer_cli.choices import LongLines
from tformer_cli.cli.entry import is_main_process
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
    FromOption,
    LengthPenaltyOption,
    MbrOption,
    PrecisionOption,
    QuantizationOption,
    QuietOption,
    SearchSetOption,
    TagOption,
    ToOption,
    WorkersOption,
    chosen_mbr,
    chosen_run,
)
from tformer_cli.cli.printing import begin_bar, tell_json, tell_stderr, warn
from tformer_cli.cli.streams import (
    STDIN,
    STDOUT,
    Recorded,
    check_outputs,
    line_windows,
    line_writer,
    recorded_options,
    reject_gzip,
    reject_pipes,
    run_and_sentence,
)
from tformer_cli.errors import UsageError
from tformer_cli.terminal import progress_bar


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
    source_language: FromOption = None,
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
        typer.Option(
            "--ban",
            help="Word or phrase that no translation contains, as the target tokenizer spells it; "
            "repeatable.",
        ),
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
    quantization: QuantizationOption = None,
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
    # Many programs call stdin and stdout so.
    input_file, output_file = (
        None if file == Path("-") else file for file in (input_file, output_file)
    )
    alignments_file = STDOUT if alignments_file == Path("-") else alignments_file

    from tformer_cli.corpus.reader import has_pipe
    from tformer_cli.documents.document import is_document
    from tformer_cli.translate.files import (
        InputFiles,
        LineOutput,
        Opener,
        ResumableFile,
        translate_text,
    )
    from tformer_cli.translate.options import SearchOptions, TranslateOptions
    from tformer_cli.translate.translator import Translator

    inputs = {
        "--input": input_file,
        "--prefixes": prefix_file,
        "--constraints": constraints_file,
        "--terminology": terminology_file,
    }
    results = {"--output": output_file, "--alignments": alignments_file}
    _check_usage(sentence, inputs, results, resume, workers, backend)
    options: TranslateOptions = {
        "decoding": SearchOptions(beam, length_penalty, settings or ()),
        "mbr": chosen_mbr(mbr, candidates),
        "tags": tags or (),
        "banned": banned or (),
        "repair": repair,
        "keep": keep or (),
        "on_warning": warn,
    }
    tally = DefectTally()
    outputs: Path | list[LineOutput]
    if input_file is not None and is_document(input_file):
        for_lines = {
            "--resume": resume,
            "--nbest": nbest > 1,
            "--alignments": alignments_file is not None,
            "--prefixes": prefix_file is not None,
            "--constraints": constraints_file is not None,
        }
        outputs = _document_output(str(input_file), output_file, for_lines)
    else:
        reject_gzip(results)
        if field is not None:
            what = "has no effect without a document"
            raise UsageError("--field", what, got=field, remedy="leave it out")
        options |= {"scored": as_json or nbest > 1, "inspected": as_json}
        text_of = json_line if as_json else numbered_lines if nbest > 1 else text_line
        target: ResumableFile | Opener = partial(line_writer, output_file)
        if resume and output_file is not None:
            target = ResumableFile(output_file, recorded_options(context))
        outputs = [LineOutput(target, text_of)]
        if alignments_file is not None:
            options["aligned"] = True
            outputs.append(LineOutput(partial(line_writer, alignments_file), alignments_line))
        if as_json or repair or keep:
            outputs.append(LineOutput(lambda: nullcontext(tally), defects_line))
    is_counted = input_file is not None and not has_pipe(input_file, prefix_file, constraints_file)
    unit = "sentence" if isinstance(outputs, Path) else "line"
    with progress_bar(unit, is_shown=is_counted and is_main_process()) as bar:
        options["on_done"] = bar.update
        report = translate_text(
            partial(
                Translator.load,
                run_directory.path,
                to=to,
                source_language=source_language,
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
            ),
            InputFiles(
                input_file or partial(line_windows, sentence),
                prefix_file,
                constraints_file,
                terminology_file,
            ),
            outputs,
            field=field,
            count=nbest,
            on_start=partial(begin_bar, bar),
            **options,
        )
    if report is not None and as_json:
        tell_json(report._asdict(), indent=None)
    if tally.num_lines:
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
                raise UsageError(option, what, remedy="use --backend native")
    if is_parallel or resume:
        reject_pipes(inputs)


def _document_output(name: str, output: Path | None, for_lines: Mapping[str, bool]) -> Path:
    """Return the output of a document, which has one process, and no options that are for lines."""
    from tformer_cli.process import num_processes

    for option, is_given in for_lines.items():
        if is_given:
            remedy = "leave it out, or use < FILE for lines"
            raise UsageError(option, "has no effect on a document", got=name, remedy=remedy)
    if output is None:
        raise UsageError("--output", "must be a file for a document", remedy="name a file")
    if num_processes() > 1:
        what = "must be lines under torchrun, which shares them"
        raise UsageError("--input", what, got=name, remedy="drop torchrun")
    return output
