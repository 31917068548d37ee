"""Every limit and rule that a configuration breaks."""

import dataclasses
import functools
import typing
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from tformer_cli.config.schema.limits import Bounds, Conflict
from tformer_cli.errors import ConfigError, Problem

_Section = TypeVar("_Section")


def check(value: object, path: str = "", hint: object = None) -> Iterator[Conflict]:
    """Yield every limit and rule that a (part of a) configuration breaks.

    A dataclass with a number out of its limits is not asked for its conflicts: they could be
    mere consequences.

    Args:
        value: a dataclass of this module, or the value of one of its fields.
        path: the key path of `value` in the whole tree; the paths yielded begin with it.
        hint: the annotation of the field that `value` comes from; a dataclass needs none.
    """
    for child_path, child, child_hint in _children(value, path, hint):
        yield from check(child, child_path, child_hint)
    yield from _broken_bounds(value, path, hint)
    if hasattr(value, "conflicts") and next(_broken_limits(value, path, hint), None) is None:
        for conflict in value.conflicts():
            yield dataclasses.replace(conflict, key=_join(path, conflict.key))


def checked(section: _Section, path: str) -> _Section:
    """Return a part of a configuration that was not read from YAML, if it makes sense.

    Args:
        section: a dataclass of the schema.
        path: its key path, for messages.

    Raises:
        ConfigError: every limit and rule that it breaks.
    """
    problems = [
        Problem(conflict.key, conflict.what, conflict.got, conflict.remedy)
        for conflict in check(section, path)
    ]
    if problems:
        raise ConfigError(problems)
    return section


def _broken_limits(value: object, path: str, hint: object) -> Iterator[Conflict]:
    """Yield the numbers anywhere in `value` that are out of their limits."""
    yield from _broken_bounds(value, path, hint)
    for child_path, child, child_hint in _children(value, path, hint):
        yield from _broken_limits(child, child_path, child_hint)


def _broken_bounds(value: object, path: str, hint: object) -> Iterator[Conflict]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for bounds in _bounds(hint):
            rule = bounds.rule(value)
            if rule is not None:
                yield Conflict(path, rule, f"{value}")


@functools.cache
def annotations(cls: type) -> dict[str, Any]:
    """Return what the fields of a dataclass are annotated with, limits included."""
    return typing.get_type_hints(cls, include_extras=True)


def _children(value: object, path: str, hint: object) -> Iterator[tuple[str, object, object]]:
    """Yield the key path, value and annotation of everything directly inside `value`."""
    if dataclasses.is_dataclass(value):
        hints = annotations(value.__class__)
        for part in dataclasses.fields(value):
            yield _join(path, part.name), getattr(value, part.name), hints[part.name]
    elif isinstance(value, tuple):
        item_hints = typing.get_args(hint)
        for index, item in enumerate(value):
            item_hint = item_hints[0] if item_hints[-1] is Ellipsis else item_hints[index]
            yield _join(path, str(index)), item, item_hint
    elif isinstance(value, dict):
        for key, item in value.items():
            yield _join(path, key), item, typing.get_args(hint)[1]


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _bounds(hint: object) -> Iterator[Bounds]:
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, Bounds):
            yield extra
    members = typing.get_args(hint)
    for member in members[:1] if typing.get_origin(hint) is Annotated else members:
        yield from _bounds(member)
