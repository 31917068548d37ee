"""A command line: parsing, help, errors and exit codes."""

import contextlib
import inspect
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from tformer_cli.cli.options import (
    HELP_PANELS,
    MAX_UNGROUPED,
    OF_ARGUMENTS,
    OF_FIELDS,
    TEXTS,
    with_options,
)
from tformer_cli.cli.printing import OPTIONS_OF_COMMAND, marked
from tformer_cli.errors import (
    DeviceError,
    Interrupted,
    ProblemWarning,
    StorageError,
    TformerError,
    UsageError,
)
from tformer_cli.terminal import is_terminal

# Former names of options, which are still accepted.
FORMER_OPTIONS = {"continue-from": "init-from"}
# What begins a paragraph of a docstring that is a command to paste.
EXAMPLE = "Example: "

_Command = TypeVar("_Command", bound=Callable[..., Any])

_show_any_warning = warnings.showwarning


class PastableExamples:
    """Help with each example in a line of its own, however long, that can be pasted."""

    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description, then the examples."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        examples = [text for text in paragraphs if text.startswith(EXAMPLE)]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(x for x in paragraphs if x not in examples))
        if not examples:
            return
        with formatter.section("Examples"):
            for text in examples:
                line = " ".join(text.removeprefix(EXAMPLE).split())
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class PlainGroup(PastableExamples, TyperGroup):
    """A command with subcommands."""


class PlainCommand(PastableExamples, TyperCommand):
    """A command that reports a wrong value of an option as a `UsageError`, and may be --quiet."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; with --quiet, what it prints on stderr goes nowhere.

        Raises:
            TformerError: of the library, with the names of this command's options.
            Interrupted: Ctrl-C, which the command itself did not handle.
        """
        # An argument may have another option in another command: --from, --source-language.
        own = {
            str(param.name): _name_in_usage(param)
            for param in self.params
            if param.name in (*OF_ARGUMENTS, *TEXTS)
        }
        if "fields" in ctx.params:
            own |= OF_FIELDS
        before = OPTIONS_OF_COMMAND.set(own)
        try:
            if not ctx.params.get("quiet"):
                return super().invoke(ctx)
            nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - closed by `with`
            with nowhere, contextlib.redirect_stderr(nowhere):
                return super().invoke(ctx)
        except TformerError as error:
            error.problems = tuple(with_options(problem, own) for problem in error.problems)
            raise
        except KeyboardInterrupt:
            if is_terminal(sys.stderr):
                # It has shown ^C.
                typer.echo(err=True)
            raise Interrupted(
                ctx.command_path,
                "interrupted",
                signal=signal.SIGINT,
                remedy="re-run the command",
            ) from None
        finally:
            OPTIONS_OF_COMMAND.reset(before)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options, in panels if they are many."""
        params = self.get_params(ctx)
        panel_of = {name: title for title, names in HELP_PANELS.items() for name in names}
        if len(params) <= MAX_UNGROUPED:
            panel_of = {}
        panels: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", "Options", *HELP_PANELS)
        }
        for param in params:
            record = param.get_help_record(ctx)
            is_argument = param.param_type_name == "argument"
            if record is not None:
                titles = (panel_of.get(name) for name in param.opts)
                title = next(filter(None, titles), "Arguments" if is_argument else "Options")
                panels[title].append(record)
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command line.

        Raises:
            UsageError: an option has a wrong value.
        """
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            # Older versions of typer check values themselves, with plain messages.
            faults = getattr(error.__cause__, "errors", None)
            if faults is None:
                raise
            fault = faults()[0]
            option = error.param.opts[0] if error.param is not None else "tformer"
            what = _rule(fault["type"], fault.get("ctx", {}))
            raise UsageError(option, what, got=str(fault["input"])) from None


def _name_in_usage(param: Any) -> str:
    """Return the option of a parameter, or what stands for an argument in the usage."""
    name: str = param.opts[0]
    return name if name.startswith("-") else param.metavar or name.upper()


def _rule(fault: str, limits: Mapping[str, Any]) -> str:
    """Return the rule that a value of an option breaks."""
    if fault == "value_error":
        _, _, quoted = str(limits["error"]).partition(" is not one of ")
        choices = quoted.rstrip(".").replace("'", "")
        return f"must be one of {choices}" if choices else "is not valid"
    if fault.startswith("int_"):
        return "must be a whole number"
    if fault.startswith(("float_", "finite_")):
        return "must be a number"
    for bound, words in (("ge", "at least"), ("le", "at most"), ("gt", "above"), ("lt", "below")):
        if bound in limits:
            limit = f"{words} {limits[bound]:g}"
            return f"must be {limit}"
    return "is not valid"


class Application(typer.Typer):
    """A command line of `PlainCommand`s; with --debug, errors show their tracebacks."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.shows_tracebacks = False

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Command], _Command]:
        """Return a decorator that adds a command."""
        return super().command(name, cls=PlainCommand, **settings)


class ReaderGone(Exception):
    """The reader of stdout has closed the pipe."""


class StdoutFile(io.FileIO):
    """The file behind stdout; its errors are ReaderGone for a closed pipe, else StorageError."""

    def write(self, content: Any) -> int:
        """Write some bytes."""
        if not content:
            # click writes nothing to probe the stream.
            return 0
        try:
            return super().write(content)
        except OSError as error:
            # Buffered text must not be written again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise ReaderGone from None
            what = "cannot be written"
            remedy = "what came out is not whole"
            raise StorageError("<stdout>", what, got=error.strerror, remedy=remedy) from error


@contextlib.contextmanager
def named_stdout() -> Iterator[None]:
    """Replace stdout for a while by a stream to the same file whose errors name it."""
    stdout = sys.stdout
    buffer = getattr(stdout, "buffer", None)
    # A test may capture it elsewhere than in a file.
    if not isinstance(stdout, io.TextIOWrapper) or not isinstance(
        buffer, io.BufferedWriter | io.FileIO
    ):
        yield
        return
    stdout.flush()
    file = StdoutFile(stdout.fileno(), "w", closefd=False)
    sys.stdout = named = io.TextIOWrapper(
        io.BufferedWriter(file) if isinstance(buffer, io.BufferedWriter) else file,
        # click replaces an ASCII stream.
        encoding="utf-8" if stdout.encoding == "ascii" else stdout.encoding,
        # File names may not be UTF-8.
        errors="surrogateescape",
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )
    try:
        yield
    finally:
        sys.stdout = stdout
        named.flush()


def new_app(**settings: Any) -> Application:
    """Return a command line with plain help and plain errors."""
    return Application(
        cls=PlainGroup,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda name: FORMER_OPTIONS.get(name, name),
        },
        rich_markup_mode=None,
        **settings,
    )


def run(app: Application) -> None:
    """Run a command line; an error is one line on stderr and an exit code.

    A closed pipe on stdout ends it silently with exit code 0.
    """
    if sys.stderr is None:
        # Closed by the shell.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - used until exit
    warnings.showwarning = _show_warning
    try:
        with named_stdout():
            app()
    except ReaderGone:
        sys.exit(0)
    except (TformerError, OSError, MemoryError) as error:
        if app.shows_tracebacks:
            raise
        reported = error if isinstance(error, TformerError) else refusal(error)
        # The terminal may be closed.
        with contextlib.suppress(OSError):
            typer.echo("\n".join(marked(x, "red") for x in reported.problems), err=True)
        sys.exit(reported.exit_code)


def _show_warning(message: Warning | str, *details: Any, **names: Any) -> None:
    """Print a warning of our own as a line, from rank 0 only; others as Python does."""
    if not isinstance(message, ProblemWarning):
        _show_any_warning(message, *details, **names)
    elif is_main_process():
        typer.echo(marked(message.problem, "yellow"), err=True)


def is_main_process() -> bool:
    """Return whether this process prints results: torchrun may have started others beside it."""
    return os.environ.get("RANK", "0") == "0"


def refuse_torchrun(command: str) -> None:
    """Refuse to run a command of a single process under torchrun."""
    from tformer_cli.process import num_processes

    if (count := num_processes()) > 1:
        where = f"tformer {command}"
        got = f"{count} processes"
        raise UsageError(where, "is for one process", got=got, remedy="drop torchrun")


def refusal(error: OSError | MemoryError) -> TformerError:
    """Return the error for an exception of the system that no other code has handled."""
    if isinstance(error, MemoryError):
        remedy = "close other programs, raise the limit on memory, or use fewer --workers"
        return DeviceError("tformer", "memory ran out", remedy=remedy)
    if error.filename is None:
        return StorageError.of(error, "tformer", "a file or stream cannot be read or written")
    return StorageError.of(error, str(error.filename), "cannot be read or written")
