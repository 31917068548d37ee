"""`tformer translate`."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, TextIO

import typer

from tformer_cli.cli.messages import warn
from tformer_cli.cli.options import (
    BeamOption,
    CheckpointOption,
    DeviceOption,
    LengthPenaltyOption,
    PrecisionOption,
    RunArgument,
    chosen_decoding,
    chosen_run,
)
from tformer_cli.run_directory import whole_file

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
    nbest: Annotated[
        int,
        typer.Option(min=1, help="Translations a line, as `line ||| translation ||| score`."),
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with tokens and scores.")
    ] = False,
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
    from tformer_cli.corpus.reader import decode_lines, read_lines
    from tformer_cli.decoding.translator import WINDOW_LINES, Translator
    from tformer_cli.device import resolve_device, resolve_precision

    # A bad line is found before the first is translated.
    total = None if input_file is None else sum(1 for _ in read_lines(input_file))
    trained = load_trained_model(run_directory, checkpoint)
    place = resolve_device(device)
    translator = Translator.of_model(
        trained.model,
        trained.tokenizers,
        trained.config,
        place,
        resolve_precision(precision, place),
        long_lines=long_lines,
        max_source_length=max_source_length,
    )
    decoding = chosen_decoding(trained.config.decoding, beam, length_penalty)
    number = 0
    with (
        _output(output_file) as output,
        tqdm(total=total, unit="line", disable=total is None or not sys.stderr.isatty()) as bar,
    ):
        windows = (
            arriving(decode_lines(_stdin(), "<stdin>"), WINDOW_LINES)
            if input_file is None
            else chunks(read_lines(input_file), WINDOW_LINES)
        )
        for window in windows:
            results = translator.nbest(
                window,
                nbest,
                decoding=decoding,
                name=None if input_file is None else str(input_file),
                start=number + 1,
                on_done=bar.update,
                on_long_line=warn,
            )
            for line, translations in zip(window, results, strict=True):
                number += 1
                if as_json:
                    output.write(_json_line(number, line, translations))
                elif nbest == 1:
                    output.write(f"{translations[0].text}\n")
                else:
                    for found in translations:
                        output.write(f"{number} ||| {found.text} ||| {found.score:.6f}\n")
            output.flush()


def _stdin() -> BinaryIO:
    """Return the bytes of stdin, for the reading thread alone.

    Where `sys.stdin` has them too, Python closes them at exit, and aborts if the thread still
    waits for a line.
    """
    assert isinstance(sys.stdin, io.TextIOWrapper)
    stream: BinaryIO = sys.stdin.detach()
    return stream


@contextlib.contextmanager
def _output(file: Path | None) -> Iterator[TextIO]:
    """Open stdout, or a file that appears when it is complete."""
    if file is None:
        # Whatever the platform and the locale: UTF-8, and LF at the end of a line.
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        try:
            yield sys.stdout
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has seen enough. What is still buffered must not be tried again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    with (
        whole_file(file) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as output,
    ):
        yield output


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
