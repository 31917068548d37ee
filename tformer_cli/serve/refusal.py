"""Refusals: errors with a status of HTTP (RFC 9110, section 15), and the answers that say them."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tformer_cli.errors import (
    ConfigError,
    DataError,
    TformerError,
    UsageError,
)

RETRY_SECONDS = 1
# What nginx logs for a client that is gone; no RFC has a status for it.
CLIENT_GONE = 499

# Fields of a request by the Python arguments that messages of the library name.
FIELDS = {
    "aligned": "alignments",
    "banned": "ban",
    "beam_size": "beam",
    "count": "nbest",
    "decoding": "set",
    "keep": "keep",
    "length_penalty": "length_penalty",
    "mbr": "mbr",
    "num_candidates": "candidates",
    "prefixes": "prefixes",
    "repair": "repair",
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


class Unprocessable(ConfigError, Refusal):
    """Fields that break rules: all problems at once."""

    status = 422


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

    def field(name: str, value: str) -> str | None:
        if name not in FIELDS:
            return None
        return f"{FIELDS[name]}={value}" if value else FIELDS[name]

    return [str(problem.renamed(field)) for problem in error.problems]


def refusal_answer(error: TformerError, status: int | None = None) -> JSONResponse:
    """Return the answer of an error: its problems, with its own status or a given one."""
    headers = dict(error.headers) if isinstance(error, Refusal) else None
    return JSONResponse(
        error_content(error), status_code=status or status_of(error), headers=headers
    )


def error_content(error: TformerError) -> dict[str, Any]:
    """Return what an answer says of an error."""
    lines = messages(error)
    return {"error": "\n".join(lines), "problems": lines}


def on_error(request: Request, error: Exception) -> Response:
    """Answer a request that a rule refuses."""
    assert isinstance(error, TformerError)
    return refusal_answer(error)


def on_status(request: Request, error: Exception) -> Response:
    """Answer a request without an endpoint."""
    assert isinstance(error, HTTPException)
    reason = HTTPStatus(error.status_code).phrase.lower()
    line = f"{request.method} {request.url.path}: {reason}; /openapi.json has what there is"
    return JSONResponse(
        {"error": line, "problems": [line]}, status_code=error.status_code, headers=error.headers
    )


def on_disconnect(request: Request, error: Exception) -> Response:
    """Answer a client that is gone; nobody reads it."""
    return Response(status_code=CLIENT_GONE)
