"""Body of a request: read up to a limit, as JSON or as a form."""

import contextlib
import json
from typing import Any, NoReturn
from urllib.parse import parse_qs

from starlette.requests import Request

from tformer_cli.serve.refusal import LargeBody, Refusal, UnknownMediaType

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


async def read_fields(
    request: Request, max_bytes: int, *, max_form_fields: int | None
) -> dict[str, Any]:
    """Return the fields of a body by their names.

    In a form all values are texts; of a name that is repeated the values are a list. A form takes
    many times as long to read as JSON, so it may have `max_form_fields` fields; None takes no form.

    Raises:
        Refusal: the body is too large, of another media type, or not what its type says.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    accepted = (JSON,) if max_form_fields is None else (JSON, FORM)
    if media_type not in accepted:
        what = f"must be {' or '.join(accepted)}"
        raise UnknownMediaType("Content-Type", what, got=media_type or None)
    body = await _read(request, max_bytes)
    return _json_object(body) if media_type == JSON else _form(body, max_form_fields)


async def _read(request: Request, max_bytes: int) -> bytes:
    """Return the body; stop reading where it is too large."""
    body = bytearray()
    # Without a number, or with one of thousands of digits, the bytes are counted as they come.
    with contextlib.suppress(ValueError):
        if int(request.headers.get("content-length", "")) > max_bytes:
            _refuse_large(max_bytes)
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            _refuse_large(max_bytes)
    return bytes(body)


def _refuse_large(max_bytes: int) -> NoReturn:
    what = f"must have at most {max_bytes:,} bytes"
    raise LargeBody("body", what, remedy="send several requests")


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal("body", "is not valid JSON", got=str(error)) from None
    if not isinstance(content, dict):
        raise Refusal("body", "must be an object", remedy='send {"name": value, ...}')
    return content


def _refuse_constant(name: str) -> NoReturn:
    # NaN and infinities, which JSON does not have.
    raise ValueError(f"{name} is no value of JSON")


def _form(body: bytes, max_fields: int | None) -> dict[str, Any]:
    try:
        fields = parse_qs(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=max_fields
        )
    except ValueError as error:
        raise Refusal("body", "is not a valid form", got=str(error)) from None
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
