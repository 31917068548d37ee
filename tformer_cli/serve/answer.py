"""Answers that are errors: a line for each problem, in the form of LibreTranslate and as a list."""

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tformer_cli.errors import TformerError
from tformer_cli.serve.refusal import Refusal, messages, status_of

# What nginx logs for a client that is gone; no RFC has a status for it.
CLIENT_GONE = 499


def refusal_answer(error: TformerError, status: int | None = None) -> JSONResponse:
    """Return the answer of an error: its problems, with its own status or a given one."""
    lines = messages(error)
    content = {"error": "\n".join(lines), "problems": lines}
    headers = dict(error.headers) if isinstance(error, Refusal) else None
    return JSONResponse(content, status or status_of(error), headers)


def on_error(request: Request, error: Exception) -> Response:
    """Answer a request that a rule refuses."""
    assert isinstance(error, TformerError)
    return refusal_answer(error)


def on_status(request: Request, error: Exception) -> Response:
    """Answer a request without an endpoint."""
    assert isinstance(error, HTTPException)
    reason = HTTPStatus(error.status_code).phrase.lower()
    line = f"{request.method} {request.url.path}: {reason}; /openapi.json has what there is"
    return JSONResponse({"error": line, "problems": [line]}, error.status_code, error.headers)


def on_disconnect(request: Request, error: Exception) -> Response:
    """Answer a client that is gone; nobody reads it."""
    return Response(status_code=CLIENT_GONE)
