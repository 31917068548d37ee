"""Where a command reads lines from, and where it writes lines to."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, get_type_hints

import typer

from tformer_cli.cli.entry import ReaderGone
from tformer_cli.corpus.reader import has_pipe
from tformer_cli.errors import UsageError
from tformer_cli.storage.atomic import atomic_write, file_checksum
from tformer_cli.terminal import is_terminal

if TYPE_CHECKING:
    from tformer_cli.translate.translator import Translator

# After `< FILE` and `> FILE` these are that file. One that is written to holds the text of others
# and must not be replaced.
STDIN = Path("/dev/stdin")
STDOUT = Path("/dev/stdout")
_CONFIGS = (".yaml", ".yml")


def line_windows(sentence: str | None, translator: "Translator") -> "Iterator[Sequence[str]]":
    """Return lines without a file to translate together: of a sentence, typed, or in a pipe."""
    from tformer_cli.corpus.prefetch import available_lines, chunks
    from tformer_cli.translate.translator import WINDOW_LINES

    if sentence is not None:
        return chunks(argument_lines(sentence), WINDOW_LINES)
    if is_interactive():
        typer.echo(f"{translator.description}; type a sentence, Ctrl-D ends", err=True)
        return ([line] for line in typed_lines(f"{translator.direction.languages[0]}> "))
    return available_lines(stdin_lines(), WINDOW_LINES)


def reject_pipes(files: Mapping[str, Path | None]) -> None:
    """Check that files, by option, can be read more than once."""
    for option, file in files.items():
        if has_pipe(file):
            what = "must be read more than once, and a pipe cannot be"
            raise UsageError(option, what, remedy="write it to a file first")


def run_and_sentence(words: Sequence[str]) -> tuple[Path | None, str | None]:
    """Return the run folder and the sentence of a command line, if any.

    A word that exists or looks like a path is a run. A word after it, or any other single word,
    is a sentence.
    """
    run: str | None = None
    sentence: str | None = None
    match words:
        case []:
            pass
        case [only] if not os.path.exists(only) and ("/" not in only or " " in only):
            sentence = only
        case [only]:
            run = only
        case [first, second] if os.path.isdir(first) or "/" in first or " " in second:
            run, sentence = first, second
        case _:
            got = " ".join(words)
            raise UsageError("SENTENCE", "must be one argument", got=got, remedy="put it in quotes")
    for word in (run, sentence):
        if word is not None and os.path.isfile(word) and not word.endswith(_CONFIGS):
            raise UsageError(word, "is a file", remedy=f"use --input {word}")
    return None if run is None else Path(run), sentence


def argument_lines(text: str) -> Iterator[str]:
    """Return the lines of a command-line argument, at least one."""
    from tformer_cli.corpus.lines import decode_lines

    return decode_lines(io.BytesIO(text.encode("utf-8", "surrogateescape") or b"\n"), "SENTENCE")


def stdin_lines() -> Iterator[str]:
    """Return the lines of stdin, to be read by a single thread.

    `sys.stdin` is detached: Python would close it at exit, and abort if the thread still waits.
    """
    from tformer_cli.corpus.lines import decode_lines

    if sys.stdin is None:
        raise UsageError("--input", "stdin is closed", remedy="name a file")
    assert isinstance(sys.stdin, io.TextIOWrapper)
    return decode_lines(sys.stdin.detach(), "<stdin>")


def is_interactive() -> bool:
    """Return whether a person types the input and reads stderr."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def typed_lines(prompt: str) -> Iterator[str]:
    """Yield the lines that a person types, with a prompt before each."""
    from tformer_cli.corpus.lines import decode_lines

    # Python's input() has line editing and history after this import.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    assert isinstance(sys.stdin, io.TextIOWrapper)
    sys.stdin.reconfigure(errors="surrogateescape")
    return decode_lines(iter(lambda: _typed_line(prompt), b""), "<stdin>")


def _typed_line(prompt: str) -> bytes:
    """Return a typed line with its end; nothing after Ctrl-D."""
    if not sys.stdout.isatty():
        # input() would print the prompt to stdout.
        typer.echo(prompt, nl=False, err=True)
        return sys.stdin.readline().encode("utf-8", "surrogateescape")
    try:
        return input(prompt).encode("utf-8", "surrogateescape") + b"\n"
    except EOFError:
        typer.echo(err=True)
        return b""


def check_outputs(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Check files by option: outputs replace neither inputs nor each other.

    Pipes and devices replace nothing.
    """
    options = {os.path.realpath(file): option for option, file in inputs.items() if file}
    for option, file in outputs.items():
        if file is None:
            continue
        is_replaced = not file.exists() or file.is_file()
        other = options.setdefault(os.path.realpath(file), option) if is_replaced else option
        if other != option:
            raise UsageError(option, f"is also {other}", got=str(file), remedy="name another file")


def reject_gzip(outputs: Mapping[str, Path | None]) -> None:
    """Check that outputs of lines, by option, are not named .gz."""
    for option, file in outputs.items():
        if file is not None and file.suffix == ".gz":
            what = "is written as plain text"
            raise UsageError(option, what, got=str(file), remedy="drop .gz from its name")


class LineWriter:
    """Writes lines and flushes them, always from the first line on (`num_lines` is 0)."""

    num_lines = 0

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def add(self, text: str, num_lines: int) -> None:
        """Write the output of some more lines."""
        self._file.write(text)
        self._file.flush()


@contextlib.contextmanager
def line_writer(file: Path | None) -> Iterator[LineWriter]:
    """Open stdout, or a file that appears when it is complete."""
    with open_output(file) as output:
        yield LineWriter(output)


@contextlib.contextmanager
def open_output(file: Path | None) -> Iterator[TextIO]:
    """Open stdout, or a file that appears when it is complete."""
    if file in (None, STDOUT):
        if sys.stdout is None:
            raise UsageError("--output", "stdout is closed", remedy="name a file")
        # UTF-8 and LF on all platforms and locales.
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        # A reader that has gone ends the command without an error.
        with contextlib.suppress(ReaderGone):
            yield sys.stdout
            sys.stdout.flush()
        return
    with (
        atomic_write(file) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as output,
    ):
        yield output


class Recorded(Enum):
    """How an option takes part in the fingerprint of a resumable output.

    An option without such a mark is recorded by its own value.
    """

    NOT = "it does not change the output"
    AS_MODEL = "by the fingerprint of the models"
    AS_SEARCH = "by the resolved search"


def recorded_options(context: typer.Context) -> Mapping[str, object]:
    """Return by name the options that determine the output of a command; files by their hash."""
    recorded = {}
    hints = get_type_hints(context.command.callback, include_extras=True)
    for option in context.command.params:
        marks = getattr(hints.get(option.name or ""), "__metadata__", ())
        if option.name in context.params and not any(isinstance(one, Recorded) for one in marks):
            value = context.params[option.name]
            is_file = isinstance(value, Path) and value.is_file()
            recorded[option.opts[0]] = file_checksum(value) if is_file else value
    return recorded
