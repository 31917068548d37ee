"""The errors a user can meet.

Every message reads `where: what (value); remedy`. The command line prints it without a traceback
and exits with the error's `exit_code`. A programmer's mistake raises ValueError instead, and a
broken invariant is an assert.
"""

import errno
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        where: a file and line, a key path, or an argument.
        what: the rule that was broken.
        got: the offending value, if it helps.
        remedy: what to do, if the rule does not say it.
    """

    where: str
    what: str
    got: str | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        value = "" if self.got is None else f" ({self.got})"
        remedy = "" if self.remedy is None else f"; {self.remedy}"
        return printable(f"{self.where}: {self.what}{value}{remedy}")

    def renamed(self, rename: Callable[[str, str], str | None]) -> "Problem":
        """Return the problem with other words for arguments, as `rename_arguments` has them.

        Its value is unchanged.
        """
        remedy = None if self.remedy is None else rename_arguments(self.remedy, rename)
        where, what = (rename_arguments(text, rename) for text in (self.where, self.what))
        return Problem(where, what, self.got, remedy)


# `workers`, `workers=1`, `decoding.beam_size`, `BeamConfig(beam_size=5)`.
ARGUMENT = re.compile(r'`(?:\w+[.(])?(\w+)(?:="?([^`]*?)"?)?\)?`')


def rename_arguments(text: str, rename: Callable[[str, str], str | None]) -> str:
    """Return a text with other words for the Python arguments in backticks.

    `rename` is called with a name, and its value or the empty text; None leaves the argument as it
    is.
    """

    def renamed(argument: re.Match[str]) -> str:
        name, value = argument.groups("")
        words = rename(name, value)
        return argument[0] if words is None else words

    return ARGUMENT.sub(renamed, text)


class ProblemWarning(Warning):
    """A warning that commands print as a line."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class TformerError(Exception):
    """A problem that the user can fix; the base of all errors here.

    Attributes:
        problems: one or several.
    """

    exit_code = 2

    def __init__(
        self, where: str, what: str, *, got: str | None = None, remedy: str | None = None
    ) -> None:
        self.problems: tuple[Problem, ...] = (Problem(where, what, got, remedy),)
        super().__init__(str(self.problems[0]))

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries; the default pickling calls `__init__` with the message.
        return type(self).__new__, (type(self), *self.args), vars(self)


class ConfigError(TformerError):
    """All problems of a configuration, one a line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        super().__init__(first.where, first.what, got=first.got, remedy=first.remedy)
        self.problems = tuple(problems)
        self.args = ("\n".join(map(str, problems)),)


class DataError(TformerError):
    """Text that cannot be read as parallel lines."""


class CheckpointError(TformerError):
    """A run folder or checkpoint that is missing, damaged or of another kind."""


class NewerFormatError(CheckpointError):
    """A file that only a newer version of the program can read."""

    @classmethod
    def of(cls, where: str, version: object, readable: int) -> "NewerFormatError":
        """Return the error of a file of a format above the newest that is readable here."""
        what = f"was written by a newer tformer than this one, which reads format {readable}"
        return NewerFormatError(where, what, got=f"format {version}", remedy="upgrade tformer")


class DeviceError(TformerError):
    """A device or a precision that is not available here."""


class UsageError(TformerError):
    """Arguments that contradict each other or name nothing."""


def reject_str(**arguments: object) -> None:
    """Reject a string where a list of strings belongs: iteration would give its characters."""
    for name, texts in arguments.items():
        if isinstance(texts, str):
            what = "must be a list of texts"
            raise UsageError(f"`{name}`", what, got="a text", remedy="put brackets around it")


def check_positive(argument: str, number: int) -> None:
    """Raise a UsageError if a number is below 1."""
    if number < 1:
        raise UsageError(argument, "must be at least 1", got=str(number))


def check_choice(argument: str, value: str, choices: Sequence[str]) -> None:
    """Raise a UsageError if a value is none of its choices."""
    if value not in choices:
        raise UsageError(argument, f"must be one of {', '.join(choices)}", got=value)


def check_utf8(where: str, text: str) -> None:
    """Raise a UsageError if a text, such as one of a command line, has bytes that are no UTF-8."""
    if has_surrogate(text):
        raise UsageError(where, "is not UTF-8", got=ascii(text))


def has_surrogate(text: str) -> bool:
    """Return whether a text has a surrogate, which no encoding of Unicode can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class StorageError(TformerError):
    """A file or folder that the system refuses to write or read."""

    @classmethod
    def of(cls, error: OSError, where: str, what: str = "cannot be written") -> "StorageError":
        """Return the error of the operating system, with a remedy."""
        remedy = _REMEDIES.get(error.errno)
        return cls(where, what, got=error.strerror or str(error), remedy=remedy)


class TrainingError(TformerError):
    """A training that cannot continue: it diverged, or memory ran out."""


class OutOfMemory(TrainingError):
    """A batch that does not fit into memory."""


class ExportError(TformerError):
    """A model that another program, given the same weights, does not reproduce."""


class Interrupted(TformerError):
    """SIGINT, SIGTERM or SIGHUP stopped the program, which left nothing half written."""

    def __init__(self, where: str, what: str, *, signal: int, remedy: str) -> None:
        super().__init__(where, what, remedy=remedy)
        self.exit_code = 128 + signal


_FULL_DISK = "free space and run the same command again; what was saved before is intact"
_NO_PERMISSION = "change its permissions, or name another path"
_NO_FOLDER = "there is a file where a folder must be: name another path"
_REMEDIES: dict[int | None, str] = {
    errno.ENOSPC: _FULL_DISK,
    errno.EDQUOT: _FULL_DISK,
    errno.EFBIG: "raise the limit on the size of a file; what was saved before is intact",
    errno.EIO: "check the disk; what was saved before is intact",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: "name a writable path",
    errno.ENOENT: "its folder is gone or refuses files: restore it, or name another path",
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
    errno.EISDIR: "name a file",
}


def quantity(count: int, noun: str) -> str:
    """Return a count with its noun, whose plural ends in s: `1 line`, `2,000 lines`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Escape control characters, which could move the cursor of a terminal, and surrogates."""

    def is_shown(character: str) -> bool:
        # Of all spaces, `isprintable` accepts that of ASCII alone.
        return character.isprintable() or unicodedata.category(character) == "Zs"

    return "".join(c if is_shown(c) else c.encode("unicode_escape").decode("ascii") for c in text)
