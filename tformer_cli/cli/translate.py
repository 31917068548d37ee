"""`tformer translate`."""

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tformer_cli.cli.input import (
    InputLine,
    SideInputs,
    given_lines,
    has_pipe,
    input_lines,
    is_terminal,
    reject_pipes,
    run_and_sentence,
    stdin_lines,
    typed_lines,
)
from tformer_cli.cli.messages import warn
from tformer_cli.cli.options import (
    BeamOption,
    CandidatesOption,
    CheckpointOption,
    DeviceOption,
    EnsembleOption,
    LengthPenaltyOption,
    MbrOption,
    PrecisionOption,
    QuantizationName,
    SearchSetOption,
    WorkersOption,
    chosen_decoding,
    chosen_mbr,
    chosen_run,
)
from tformer_cli.cli.output import (
    STDIN,
    STDOUT,
    Stream,
    discarded,
    reject_gzip_names,
    reject_overwriting,
    streamed,
)
from tformer_cli.cli.resumption import made_from
from tformer_cli.errors import UsageError
from tformer_cli.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    import torch

    from tformer_cli.storage.partial_file import PartialFile
    from tformer_cli.text.segments import Terminology
    from tformer_cli.translate.postprocess import Translation

# Behind them stands mostly rounding, which is a matter of the batch.
SCORE_DECIMALS = 4


def translate(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [SENTENCE]",
            help="A run folder, such as runs/demo; without it the newest under runs/. And a "
            "sentence to translate, in quotes; without it --input is read, or stdin.",
            show_default=False,
        ),
    ] = None,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", "-i", help="Text to translate, plain or .gz. Default: stdin."),
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the translations go. Default: stdout."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on where the same command was killed; what is done lies in OUTPUT.partial.",
        ),
    ] = False,
    beam: BeamOption = None,
    length_penalty: LengthPenaltyOption = None,
    settings: SearchSetOption = None,
    mbr: MbrOption = None,
    candidates: CandidatesOption = None,
    ensemble: EnsembleOption = None,
    nbest: Annotated[
        int,
        typer.Option(min=1, help="Translations a line, as `line ||| translation ||| score`."),
    ] = 1,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line, with tokens, scores, alignments."),
    ] = False,
    alignments_file: Annotated[
        Path | None,
        typer.Option(
            "--alignments",
            help="Where to write which words come from which: for each line the numbers of source "
            "and target words, from 0, as in `0-0 1-2`.",
        ),
    ] = None,
    prefix_file: Annotated[
        Path | None,
        typer.Option(
            "--prefixes", help="What each translation begins with, a line for each line of --input."
        ),
    ] = None,
    banned: Annotated[
        list[str] | None,
        typer.Option("--ban", help="A word or phrase that no translation has; may be repeated."),
    ] = None,
    constraints_file: Annotated[
        Path | None,
        typer.Option(
            "--constraints",
            help="Phrases that each translation has, with tabs between them, a line for each line "
            "of --input. A long line in pieces can have none.",
        ),
    ] = None,
    terminology_file: Annotated[
        Path | None,
        typer.Option(
            "--terminology",
            help="Lines of a source term, a tab and a target term: the translation of a line, or "
            "of a piece of a long one, that has the first has the second.",
        ),
    ] = None,
    long_lines: Annotated[
        Literal["split", "truncate", "error"],
        typer.Option(help="What becomes of a line that is longer than training has seen any."),
    ] = "split",
    max_source_length: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens above which a line is long. Default: data.filters.max_length."
        ),
    ] = None,
    max_source_sentences: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Sentences above which --long-lines split cuts a line. Default: what training "
            "lines had.",
        ),
    ] = None,
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    precision: PrecisionOption = "float32",
    workers: WorkersOption = None,
    backend: Annotated[
        Literal["native", "ctranslate2"],
        typer.Option(help="What searches: tformer itself, or CTranslate2 by an export in the run."),
    ] = "native",
    quantization: Annotated[
        QuantizationName | None,
        typer.Option(help="Number format of CTranslate2's matrices. Default: float32."),
    ] = None,
) -> None:
    """Translate text line by line: n lines in, n lines out, in their order.

    Without --input, lines are read from stdin and answered as they come. A long line is cut at
    sentence ends, and its translated pieces are joined; stderr names it.

    Example: tformer translate runs/demo "The girl has danced with us."

    Example: tformer translate runs/demo --input test.en --output test.de --beam 5

    Example: tformer translate runs/demo --input crawl.en.gz --output crawl.de --resume

    Example: tformer translate runs/demo -i test.en --backend ctranslate2 --quantization int8
    """
    run, sentence = run_and_sentence(words or [])
    runs = [chosen_run(run, checkpoint), *map(RunDirectory, ensemble or [])]
    if sentence is not None and input_file is not None:
        raise UsageError("--input", "contradicts a sentence", remedy="leave one of them out")

    from tqdm import tqdm

    from tformer_cli.device import default_num_workers, resolve_device, resolve_precision
    from tformer_cli.distributed import local_device, num_processes, process_group
    from tformer_cli.process import tune_allocator
    from tformer_cli.storage.trained_model import load_ensemble
    from tformer_cli.text.segments import pharaoh
    from tformer_cli.translate.translator import Translator

    beside = SideInputs(prefix_file, constraints_file)
    outputs = {"--output": output_file, "--alignments": alignments_file}
    reject_gzip_names(outputs)
    reject_overwriting(
        outputs,
        {
            "--input": input_file or STDIN,
            "--prefixes": prefix_file,
            "--constraints": constraints_file,
            "--terminology": terminology_file,
        },
    )
    _check_usage(
        input_file,
        beside,
        terminology_file,
        output_file,
        alignments_file,
        workers,
        resume=resume,
    )
    total = None
    # Bytes that are no text, and files of unequal length, are found before the first line is
    # translated; but a pipe can be read only once. Whether a line can have its prefix and phrases
    # is a matter of tokens, and found in its window.
    if input_file is not None and not has_pipe(input_file, *beside):
        total = sum(1 for _ in input_lines(input_file, beside))
    trained, *others = load_ensemble(runs, checkpoint)
    if backend == "ctranslate2" and device == "auto":
        device = "cpu"
    place = local_device(resolve_device(device))
    tune_allocator()
    if backend == "ctranslate2":
        demands = {
            "--prefixes": prefix_file,
            "--constraints": constraints_file,
            "--terminology": terminology_file,
        }
        _check_backend(ensemble, demands, place, precision, workers)
        workers = 1
    elif quantization is not None:
        raise UsageError(
            "--quantization", "has no effect without --backend ctranslate2", got=quantization
        )
    if workers is None:
        workers = default_num_workers(place) if num_processes() == 1 else 1
    translator = Translator.from_model(
        trained.model,
        trained.tokenizers,
        trained.config,
        place,
        resolve_precision(precision, place),
        others=[other.model for other in others],
        long_lines=long_lines,
        max_source_length=max_source_length,
        max_source_sentences=max_source_sentences or trained.max_source_sentences,
    )
    if backend == "ctranslate2":
        from tformer_cli.export.ctranslate2.format import cached_engine

        translator.engine = cached_engine(runs[0], trained, quantization or "float32")
    source_language = trained.config.data.source_language
    is_typed = sentence is None and input_file is None and is_terminal()
    if is_typed:
        languages = f"{source_language} -> {trained.config.data.target_language}"
        loaded = f"{runs[0].path} (step {trained.step})"
        typer.echo(f"{languages} by {loaded}; type a sentence, Ctrl-D ends", err=True)
    decoding = chosen_decoding(trained.config, beam, length_penalty, settings)
    choice = chosen_mbr(mbr, candidates)
    terminology = None if terminology_file is None else _terms(terminology_file, source_language)
    made = None
    if resume:
        fingerprints = [one.fingerprint for one in (trained, *others)]
        made = partial(made_from, context, fingerprints, decoding)
    # Their weights would stay in the memory of all workers.
    del trained, others
    translator.start_workers(workers)
    with (
        process_group(place) as world,
        _destination(output_file, made) if world.is_main_process else discarded() as output,
        streamed(alignments_file)
        if world.is_main_process and alignments_file is not None
        else discarded() as alignments,
        tqdm(
            total=total,
            initial=output.num_lines,
            unit="line",
            disable=total is None or not world.is_main_process or not sys.stderr.isatty(),
        ) as bar,
    ):
        num_done = world.all_reduce_max(output.num_lines)
        if sentence is not None:
            windows = iter([[InputLine(line) for line in given_lines(sentence)]])
        elif is_typed:
            windows = ([InputLine(line)] for line in typed_lines(f"{source_language}> "))
        else:
            windows = _windows(input_file, beside, num_done, world.size)
        for window in windows:
            own = world.shard(window)
            found = translator.nbest(
                [one.text for one in own],
                nbest,
                decoding=decoding,
                mbr=choice,
                prefixes=[one.prefix for one in own],
                banned=banned or (),
                required=[one.phrases for one in own] if constraints_file else None,
                terminology=terminology,
                scored=as_json or nbest > 1,
                aligned=as_json or alignments_file is not None,
                name=None if input_file is None else str(input_file),
                start=num_done + 1 + world.rank,
                step=world.size,
                # The others are about as fast.
                on_done=lambda count: bar.update(count * world.size),
                on_warning=warn,
            )
            results = list(found)
            numbers = world.shard(range(num_done + 1, num_done + 1 + len(window)))
            written = [
                _json_line(number, asked.text, translations)
                if as_json
                else _text_lines(number, translations, numbered=nbest > 1)
                for number, asked, translations in zip(numbers, own, results, strict=True)
            ]
            output.add("".join(world.gather_shards(written)), len(window))
            if alignments_file is not None:
                pairs = [f"{pharaoh(best.alignments or ())}\n" for best, *_ in results]
                alignments.add("".join(world.gather_shards(pairs)), len(window))
            num_done += len(window)
            bar.update(num_done - bar.n)


def _check_usage(
    input_file: Path | None,
    beside: SideInputs,
    terminology_file: Path | None,
    output_file: Path | None,
    alignments_file: Path | None,
    workers: int | None,
    *,
    resume: bool,
) -> None:
    """Refuse what several processes cannot share, or what nobody can go on with.

    Raises:
        UsageError: there is such.
    """
    from tformer_cli.distributed import num_processes

    files_beside = {"--prefixes": beside.prefixes, "--constraints": beside.constraints}
    for option, file in files_beside.items():
        if file is not None and input_file is None:
            raise UsageError(option, "needs --input, line for line", remedy="name that file")
    if resume and (input_file is None or output_file in (None, STDOUT)):
        raise UsageError("--resume", "needs --input and --output", remedy="name both files")
    if resume and alignments_file is not None:
        raise UsageError(
            "--alignments", "contradicts --resume", remedy="use --json, which holds them too"
        )
    is_shared = num_processes() > 1
    if is_shared and input_file is None:
        raise UsageError(
            "--input", "is needed by torchrun, for stdin cannot be shared", remedy="name a file"
        )
    if is_shared and workers is not None and workers > 1:
        raise UsageError(
            "--workers",
            "must be 1 under torchrun, which has begun the processes itself",
            got=str(workers),
            remedy="leave it out",
        )
    if is_shared or resume:
        reject_pipes({"--input": input_file, **files_beside, "--terminology": terminology_file})
    elif all(beside):
        reject_pipes({"--input": input_file})


def _check_backend(
    ensemble: list[Path] | None,
    demands: Mapping[str, Path | None],
    device: "torch.device",
    precision: str,
    workers: int | None,
) -> None:
    """Refuse what CTranslate2 has otherwise, or not at all.

    A file of demands is refused whatever it says: the first line to have any may come late.

    Raises:
        UsageError: there is such.
    """
    from tformer_cli.distributed import num_processes
    from tformer_cli.export.ctranslate2.engine import reject

    option = "--backend ctranslate2"
    if num_processes() > 1:
        raise UsageError(option, "is for one process, which has threads", remedy="drop torchrun")
    if ensemble:
        raise UsageError("--ensemble", f"has no effect on {option}", remedy="leave one of them out")
    for name, file in demands.items():
        if file is not None:
            reject(name)
    if precision != "float32":
        raise UsageError(
            "--precision", f"has no effect on {option}", got=precision, remedy="use --quantization"
        )
    if workers is not None and workers > 1:
        raise UsageError(
            "--workers",
            f"has no effect on {option}, which has threads",
            got=str(workers),
            remedy="leave it out",
        )
    if device.type != "cpu":
        raise UsageError(
            "--device", f"must be cpu with {option}", got=str(device), remedy="add --device cpu"
        )


def _destination(
    output_file: Path | None, made: Callable[[], Mapping[str, object]] | None
) -> "contextlib.AbstractContextManager[PartialFile | Stream]":
    """Open what the translations are added to; a file goes on where it is known what it is of."""
    from tformer_cli.storage.partial_file import partial_file

    if made is None or output_file is None:
        return streamed(output_file)
    return partial_file(output_file, made())


def _windows(
    input_file: Path | None, beside: SideInputs, num_done: int, num_processes: int
) -> Iterator[list[InputLine]]:
    """Yield the lines that are still to be translated, as many at a time as are read together."""
    from tformer_cli.corpus.prefetch import available_lines, chunks
    from tformer_cli.translate.translator import WINDOW_LINES

    if input_file is None:
        return (
            [InputLine(line) for line in lines]
            for lines in available_lines(stdin_lines(), WINDOW_LINES)
        )
    rest = itertools.islice(input_lines(input_file, beside), num_done, None)
    return chunks(rest, WINDOW_LINES * num_processes)


def _terms(file: Path, source_language: str) -> "Terminology":
    from tformer_cli.corpus.reader import read_lines
    from tformer_cli.text.segments import Terminology

    return Terminology(read_lines(file), str(file), source_language=source_language)


def _text_lines(number: int, translations: "Sequence[Translation]", *, numbered: bool) -> str:
    if not numbered:
        return f"{translations[0].text}\n"
    return "".join(
        f"{number} ||| {found.text} ||| {found.score:.{SCORE_DECIMALS}f}\n"
        for found in translations
    )


def _json_line(number: int, line: str, translations: "Sequence[Translation]") -> str:
    content = {
        "line": number,
        "source": line,
        "source_tokens": translations[0].source_tokens,
        "translations": [
            {
                "text": found.text,
                "tokens": found.tokens,
                "score": round(found.score, SCORE_DECIMALS),
                "log_prob": round(found.log_prob, SCORE_DECIMALS),
                "finished": found.finished,
                "alignments": found.alignments,
            }
            for found in translations
        ],
    }
    return json.dumps(content, ensure_ascii=False) + "\n"
