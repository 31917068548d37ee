"""Refresh the table of configuration keys in docs/reference/options.md from the schema.

Example: python scripts/make_option_table.py
"""

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

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import MAX_COUNT, Bounds, annotations, members
from tformer_cli.storage.atomic import write_text

BEGIN = "<!-- options:begin -->"
END = "<!-- options:end -->"

_WORDS = {
    bool: "`true`, `false`",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    types.NoneType: "`null`",
    dict[str, str]: "texts by name",
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
    """Yield the rows of a dataclass; `path` is its key path with a dot at the end, or empty."""
    meanings = docstrings(cls)
    for part in dataclasses.fields(cls):
        hint = annotations(cls)[part.name]
        yield from _field_rows(f"{path}{part.name}", hint, _default(part), meanings[part.name])


def docstrings(cls: Any) -> dict[str, str]:
    """Return the text under each field of a dataclass, including inherited fields."""
    texts: dict[str, str] = {}
    for ancestor in reversed(cls.__mro__[:-1]):
        for statement, text in itertools.pairwise(_class_body(ancestor)):
            match statement, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(meaning))),
                ):
                    texts[name] = " ".join(meaning.split())
    return texts


@functools.cache
def _class_body(cls: type) -> list[ast.stmt]:
    """Return the statements of a class: Python drops the text under a field."""
    (node,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    return node.body


def _field_rows(key: str, hint: Any, default: str, meaning: str) -> Iterator[Row]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    classes = [member for member in members(hint) if dataclasses.is_dataclass(member)]
    if len(classes) == 1:
        yield Row(f"**`{key}`**", default if default == "`null`" else "", "", meaning)
        yield from rows(classes[0], f"{key}.")
    elif classes and all(hasattr(cls, "kind") for cls in classes):
        yield from _union_rows(key, classes, default, meaning)
    elif classes:
        yield Row(f"**`{key}`**", "", "", meaning)
        yield from _rows_of_any(classes, f"{key}.")
    elif origin is dict:
        yield Row(f"`{key}`", default, "by name", meaning)
        yield from _rows_of_any(list(members(arguments[1])), f"{key}.NAME.")
    elif origin is tuple and any(map(dataclasses.is_dataclass, members(arguments[0]))):
        yield Row(f"`{key}`", default, "list", meaning)
        yield from _rows_of_any(list(members(arguments[0])), f"{key}.0.")
    else:
        yield Row(f"`{key}`", default, _values(hint), meaning)


def _rows_of_any(classes: Sequence[Any], path: str) -> Iterator[Row]:
    """Yield the rows of a union without `kind`, each row once."""
    yield from dict.fromkeys(row for cls in classes for row in rows(cls, path))


def _union_rows(key: str, classes: Sequence[Any], default: str, meaning: str) -> Iterator[Row]:
    """Yield the row of `kind`, and one for each other key with the kinds that have it."""
    owners: dict[Row, list[str]] = {}
    choices = {}
    for cls in classes:
        kind, *others = sorted(rows(cls, f"{key}."), key=lambda row: row.key != f"`{key}.kind`")
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
        return ", or ".join(map(_values, arguments))
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of {_values(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_values, arguments))}]"
    return _WORDS[hint]


def _interval(bounds: Bounds) -> str:
    # A limit beyond all machines needs no mention.
    le = None if bounds.le == MAX_COUNT else bounds.le
    limits = (("≥", bounds.ge), (">", bounds.gt), ("≤", le), ("<", bounds.lt))
    return ", ".join(f"{sign} {limit:.10g}" for sign, limit in limits if limit is not None)


if __name__ == "__main__":
    page = Path(__file__).parent.parent / "docs" / "reference" / "options.md"
    write_text(page, with_option_table(page.read_text(encoding="utf-8")))
