"""`tformer translate`."""

import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tformer_cli.cli.messages import warn
from tformer_cli.cli.options import (
    BeamOption,
    CheckpointOption,
    DeviceOption,
    LengthPenaltyOption,
    PrecisionOption,
    RunArgument,
    SearchSetOption,
    WorkersOption,
    chosen_decoding,
    chosen_run,
)
from tformer_cli.cli.output import opened
from tformer_cli.errors import UsageError

if TYPE_CHECKING:
    from tformer_cli.decoding.translator import Translation


def translate(
    run: RunArgument = None,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", "-i", help="Text to translate, plain or .gz. Default: stdin."),
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the translations go. Default: stdout."),
    ] = None,
    beam: BeamOption = None,
    length_penalty: LengthPenaltyOption = None,
    settings: SearchSetOption = None,
    nbest: Annotated[
        int,
        typer.Option(min=1, help="Translations a line, as `line ||| translation ||| score`."),
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with tokens and scores.")
    ] = False,
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
    checkpoint: CheckpointOption = "best",
    device: DeviceOption = "auto",
    precision: PrecisionOption = "float32",
    workers: WorkersOption = None,
) -> None:
    """Translate text line by line: n lines in, n lines out, in their order.

    Without --input, lines are read from stdin and answered as they come. A long line is cut at
    sentence ends, and its translated pieces are joined; stderr names it.

    Example: echo "The old dog sleeps." | tformer translate

    Example: tformer translate runs/demo --input test.en --output test.de --beam 5
    """
    run_directory = chosen_run(run)

    from tqdm import tqdm

    from tformer_cli.checkpoint.trained_model import load_trained_model
    from tformer_cli.corpus.chunks import chunks
    from tformer_cli.corpus.read_ahead import arriving
    from tformer_cli.decoding.translator import WINDOW_LINES, Translator
    from tformer_cli.device import default_workers, resolve_device, resolve_precision

    if prefix_file is not None and input_file is None:
        raise UsageError("--prefixes", "needs --input, line for line", remedy="name that file")
    # A bad line is found before the first is translated.
    total = None if input_file is None else sum(1 for _ in _lines(input_file, prefix_file))
    trained = load_trained_model(run_directory, checkpoint)
    place = resolve_device(device)
    translator = Translator.of_model(
        trained.model,
        trained.tokenizers,
        trained.config,
        place,
        resolve_precision(precision, place),
        workers=workers or default_workers(place),
        long_lines=long_lines,
        max_source_length=max_source_length,
    )
    decoding = chosen_decoding(trained.config, beam, length_penalty, settings)
    number = 0
    with (
        opened(output_file) as output,
        tqdm(total=total, unit="line", disable=total is None or not sys.stderr.isatty()) as bar,
    ):
        windows: Iterator[list[tuple[str, str]]] = (
            ([(line, "") for line in lines] for lines in arriving(_stdin(), WINDOW_LINES))
            if input_file is None
            else chunks(_lines(input_file, prefix_file), WINDOW_LINES)
        )
        for window in windows:
            lines, prefixes = zip(*window, strict=True)
            results = translator.nbest(
                lines,
                nbest,
                decoding=decoding,
                prefixes=prefixes,
                banned=banned or (),
                scored=as_json or nbest > 1,
                name=None if input_file is None else str(input_file),
                start=number + 1,
                on_done=bar.update,
                on_long_line=warn,
            )
            for line, translations in zip(lines, results, strict=True):
                number += 1
                if as_json:
                    output.write(_json_line(number, line, translations))
                elif nbest == 1:
                    output.write(f"{translations[0].text}\n")
                else:
                    for found in translations:
                        output.write(f"{number} ||| {found.text} ||| {found.score:.6f}\n")
            output.flush()


def _stdin() -> Iterator[str]:
    """Return the lines of stdin, for the reading thread alone.

    Where `sys.stdin` has its bytes too, Python closes them at exit, and aborts if the thread
    still waits for a line.
    """
    from tformer_cli.corpus.reader import decode_lines

    assert isinstance(sys.stdin, io.TextIOWrapper)
    return decode_lines(sys.stdin.detach(), "<stdin>")


def _lines(file: Path, prefix_file: Path | None) -> Iterator[tuple[str, str]]:
    """Yield each line of a file with its prefix."""
    from tformer_cli.corpus.reader import read_lines, read_pairs

    if prefix_file is None:
        return ((line, "") for line in read_lines(file))
    return read_pairs(file, prefix_file)


def _json_line(number: int, line: str, translations: "Sequence[Translation]") -> str:
    content = {
        "line": number,
        "source": line,
        "translations": [
            {
                "text": found.text,
                "tokens": found.tokens,
                "score": found.score,
                "log_prob": found.log_prob,
            }
            for found in translations
        ],
    }
    return json.dumps(content, ensure_ascii=False) + "\n"
