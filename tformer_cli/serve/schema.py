"""JSON Schema: the part of it that describes requests in the API document, and checks them."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tformer_cli.errors import Problem, has_surrogate

Schema = Mapping[str, Any]

# Types of JSON Schema: the Python types, and the words of messages.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "text"),
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "array": ((list,), "a list"),
    "object": ((dict,), "an object"),
}
_MAX_SHOWN = 40
# A body may have a mistake in every few bytes.
MAX_PROBLEMS = 20


def problems(content: object, schema: Schema) -> list[Problem]:
    """Return the first rules of a schema that the content of a body breaks.

    Args:
        content: what `json.loads` returned.
        schema: with the keys `type`, `enum`, `minimum`, `maximum`, `maxLength`, `minItems`,
            `maxItems`, `items`, `properties`, `required`, `additionalProperties`, `propertyNames`.
    """
    return list(itertools.islice(_problems(content, schema, "body"), MAX_PROBLEMS))


def _problems(value: object, schema: Schema, where: str) -> Iterator[Problem]:
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(_is(value, name) for name in types):
        words = " or ".join(_TYPES[name][1] for name in types)
        yield Problem(where, f"must be {words}", got=_shown(value))
    elif isinstance(value, str):
        yield from _text_problems(value, schema, where)
    elif isinstance(value, list):
        yield from _list_problems(value, schema, where)
    elif isinstance(value, dict):
        yield from _object_problems(value, schema, where)
    elif isinstance(value, int | float):
        yield from _number_problems(value, schema, where)


def _is(value: object, name: str) -> bool:
    types, _ = _TYPES[name]
    # In Python a bool is an int.
    return isinstance(value, types) and (name == "boolean") == isinstance(value, bool)


def _text_problems(text: str, schema: Schema, where: str) -> Iterator[Problem]:
    if "enum" in schema and text not in schema["enum"]:
        yield Problem(where, f"must be one of {', '.join(schema['enum'])}", got=_cut(text))
    if len(text) > schema.get("maxLength", math.inf):
        what = f"must have at most {schema['maxLength']:,} characters"
        yield Problem(where, what, got=f"{len(text):,}", remedy="split it")
    if has_surrogate(text):
        yield Problem(where, "has half of a surrogate pair, which is no character")


def _number_problems(number: float, schema: Schema, where: str) -> Iterator[Problem]:
    if not number >= schema.get("minimum", -math.inf):
        yield Problem(where, f"must be at least {schema['minimum']:g}", got=_shown(number))
    if not number <= schema.get("maximum", math.inf):
        yield Problem(where, f"must be at most {schema['maximum']:g}", got=_shown(number))


def _list_problems(items: Sequence[object], schema: Schema, where: str) -> Iterator[Problem]:
    if len(items) < schema.get("minItems", 0):
        yield Problem(where, "must not be empty")
    if len(items) > schema.get("maxItems", math.inf):
        what = f"must have at most {schema['maxItems']:,} items"
        yield Problem(where, what, got=f"{len(items):,}", remedy="send several requests")
    for index, item in enumerate(items):
        yield from _problems(item, schema["items"], f"{where}[{index}]")


def _object_problems(content: dict[str, Any], schema: Schema, where: str) -> Iterator[Problem]:
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for key, value in content.items():
        path = key if where == "body" else f"{where}.{key}"
        if key in known:
            yield from _problems(value, known[key], path)
        elif others is False:
            remedy = f"choose from: {', '.join(known)}"
            yield Problem(_cut(path), "no such field", remedy=remedy)
        elif others is not True:
            yield from _problems(key, schema["propertyNames"], f"a key of {where}")
            yield from _problems(value, others, _cut(path))
    for key in schema.get("required", ()):
        if key not in content:
            yield Problem(key, "is required")


def _shown(value: object) -> str:
    try:
        return _cut(json.dumps(value, ensure_ascii=False))
    except RecursionError:  # `json.loads`, which has fewer callers, may read what is too deep here
        return "nested too deeply"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
