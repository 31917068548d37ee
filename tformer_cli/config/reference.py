"""The table of all configuration keys, made from the schema and the text under its fields."""

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tformer_cli.config.schema.check import annotations
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.limits import MOST, Bounds

BEGIN = "<!-- options:begin -->"
END = "<!-- options:end -->"

_WORDS = {
    bool: "`true`, `false`",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    types.NoneType: "`null`",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One key; a section has neither a default nor values."""

    key: str
    default: str
    values: str
    meaning: str

    def __str__(self) -> str:
        cells = (self.key, self.default, self.values, self.meaning)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def option_table() -> str:
    """Return all keys as a Markdown table."""
    head = "| Key | Default | Values | Meaning |\n|---|---|---|---|\n"
    return head + "".join(f"{row}\n" for row in rows(Config))


def with_option_table(page: str) -> str:
    """Return a text with a fresh table between its two markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, "the page has lost its options:begin marker"
    assert end, "the page has lost its options:end marker"
    return f"{before}{BEGIN}\n{option_table()}{END}{after}"


def rows(cls: Any, path: str = "") -> Iterator[Row]:
    """Yield the rows of the fields of a dataclass, and of everything below them.

    Args:
        cls: a dataclass of the schema.
        path: its key path, with a dot at the end unless it is empty.
    """
    meanings = docstrings(cls)
    hints = annotations(cls)
    for part in dataclasses.fields(cls):
        key = f"{path}{part.name}"
        yield from _field_rows(key, hints[part.name], _default(part), meanings[part.name])


def docstrings(cls: Any) -> dict[str, str]:
    """Return the text under each field of a dataclass, inherited fields included."""
    found: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__[:-1]):
        for field, text in itertools.pairwise(_class_body(ancestor)):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(meaning))),
                ):
                    found[name] = " ".join(meaning.split())
    return found


@functools.cache
def _class_body(cls: type) -> list[ast.stmt]:
    """Return the statements of a class of the schema: Python keeps no text under a field."""
    (node,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    return node.body


def _field_rows(key: str, hint: Any, default: str, meaning: str) -> Iterator[Row]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    members = [member for member in arguments if member is not types.NoneType]
    if dataclasses.is_dataclass(hint):
        yield Row(f"**`{key}`**", default if default == "`null`" else "", "", meaning)
        yield from rows(hint, f"{key}.")
    elif origin is types.UnionType and all(map(dataclasses.is_dataclass, members)):
        if len(members) == 1:
            yield from _field_rows(key, members[0], default, meaning)
        elif all(hasattr(member, "kind") for member in members):
            yield from _union_rows(key, members, default, meaning)
        else:
            yield Row(f"**`{key}`**", "", "", meaning)
            yield from _rows_of_any(members, f"{key}.")
    elif origin is dict:
        yield Row(f"`{key}`", default, "by name", meaning)
        yield from rows(arguments[1], f"{key}.NAME.")
    elif origin is tuple and arguments[-1] is Ellipsis:
        yield Row(f"`{key}`", default, "list", meaning)
        yield from _rows_of_any(typing.get_args(arguments[0]) or arguments[:1], f"{key}.0.")
    else:
        yield Row(f"`{key}`", default, _values(hint), meaning)


def _rows_of_any(members: Sequence[Any], path: str) -> Iterator[Row]:
    """Yield the rows of choices that have no `kind`; what they share comes once."""
    yield from dict.fromkeys(row for member in members for row in rows(member, path))


def _union_rows(key: str, members: Sequence[Any], default: str, meaning: str) -> Iterator[Row]:
    """Yield the row of `kind`, and one for each other key, with its kinds unless all have it."""
    owners: dict[Row, list[str]] = {}
    choices = {}
    for member in members:
        kind, *others = sorted(rows(member, f"{key}."), key=lambda row: row.key != f"`{key}.kind`")
        choices[kind.default] = kind.meaning
        for row in others:
            owners.setdefault(row, []).append(kind.default)
    explained = " ".join(f"{choice}: {what}" for choice, what in choices.items())
    yield Row(f"**`{key}.kind`**", default, ", ".join(choices), f"{meaning} {explained}")
    for row, kinds in owners.items():
        note = "" if len(kinds) == len(choices) else f" ({', '.join(kinds)})"
        yield dataclasses.replace(row, key=f"{row.key}{note}")


def _default(part: dataclasses.Field[Any]) -> str:
    if part.default is not dataclasses.MISSING:
        value = part.default
        return f"`{value if isinstance(value, str) else json.dumps(value)}`"
    if part.default_factory is dataclasses.MISSING:
        return "*required*"
    made = part.default_factory()
    return f"`{made.kind if hasattr(made, 'kind') else made}`"


def _values(hint: Any) -> str:
    """Return in words what a field may hold."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        intervals = [_interval(extra) for extra in arguments[1:] if isinstance(extra, Bounds)]
        return " ".join([_values(arguments[0]), *intervals])
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(_values(argument) for argument in arguments)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple:
        return f"[{', '.join(_values(argument) for argument in arguments)}]"
    return _WORDS[hint]


def _interval(bounds: Bounds) -> str:
    limits = (
        ("≥", bounds.minimum),
        (">", bounds.above),
        # What no machine has needs no mention.
        ("≤", None if bounds.maximum == MOST else bounds.maximum),
        ("<", bounds.below),
    )
    return ", ".join(f"{sign} {limit:.10g}" for sign, limit in limits if limit is not None)
