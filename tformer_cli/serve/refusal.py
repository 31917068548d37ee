"""Refusals: errors with the status of HTTP that says them to a client (RFC 9110, section 15)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tformer_cli.errors import (
    ConfigError,
    DataError,
    Problem,
    TformerError,
    UsageError,
    rename_arguments,
)

RETRY_SECONDS = 1

# Fields of a request by the Python arguments that messages of the library name.
FIELDS = {
    "aligned": "alignments",
    "banned": "ban",
    "beam_size": "beam",
    "count": "nbest",
    "decoding": "set",
    "length_penalty": "length_penalty",
    "mbr": "mbr",
    "num_candidates": "candidates",
    "prefixes": "prefixes",
    "required": "constraints",
    "settings": "set",
    "tags": "tag",
    "terminology": "terminology",
    "utility": "mbr",
}


class Refusal(TformerError):
    """A request that is refused."""

    status = 400
    headers: ClassVar[Mapping[str, str]] = {}


class Unauthorized(Refusal):
    """A request without a valid API key."""

    status = 401
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class Forbidden(Refusal):
    """A request from a page of another site."""

    status = 403


class SlowBody(Refusal):
    """A body that does not arrive in time."""

    status = 408


class LargeBody(Refusal):
    """A body above the limit."""

    status = 413


class UnknownMediaType(Refusal):
    """A body that is neither JSON nor a form."""

    status = 415


class Misdirected(Refusal):
    """A request to a host name that is not this server's."""

    status = 421


class Unprocessable(Refusal):
    """Fields that break rules: all problems at once."""

    status = 422

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        super().__init__(first.where, first.what, got=first.got, remedy=first.remedy)
        self.problems = tuple(problems)


class Failed(Refusal):
    """A translation that has failed by a bug, which the log describes."""

    status = 500


class NotOffered(Refusal):
    """What the API has and this server has not."""

    status = 501


class Overloaded(Refusal):
    """A request for which there is no room in the queue."""

    status = 503
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": str(RETRY_SECONDS)}


class OutOfTime(Refusal):
    """A translation that is not done in time."""

    status = 504


def status_of(error: TformerError) -> int:
    """Return the status of an error: that of a refusal, 422 for wrong arguments, else 500."""
    if isinstance(error, Refusal):
        return error.status
    return 422 if isinstance(error, UsageError | ConfigError | DataError) else 500


def messages(error: TformerError) -> list[str]:
    """Return the message of each problem, with fields of a request for Python arguments."""
    return [
        str(
            replace(
                problem,
                where=_in_fields(problem.where),
                what=_in_fields(problem.what),
                remedy=None if problem.remedy is None else _in_fields(problem.remedy),
            )
        )
        for problem in error.problems
    ]


def _in_fields(text: str) -> str:
    def field(name: str, value: str) -> str | None:
        if name not in FIELDS:
            return None
        return f"{FIELDS[name]}={value}" if value else FIELDS[name]

    return rename_arguments(text, field)
