"""What a field may hold: bounds, former names and rules; and the walk that checks a tree."""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from tformer_cli.errors import ConfigError, Problem

_Section = TypeVar("_Section")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Interval of a number: `ge` and `le` belong to it, `gt` and `lt` do not; None is no bound."""

    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None

    def rule(self, value: float) -> str | None:
        """Return the bound that `value` breaks, in words, or None."""
        # Negated comparisons, so that NaN breaks every bound.
        if self.ge is not None and not value >= self.ge:
            return f"must be at least {self.ge:.10g}"
        if self.le is not None and not value <= self.le:
            return f"must be at most {self.le:.10g}"
        if self.gt is not None and not value > self.gt:
            return f"must be above {self.gt:.10g}"
        if self.lt is not None and not value < self.lt:
            return f"must be below {self.lt:.10g}"
        return None

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest number of the interval."""
        least = -math.inf if self.ge is None else self.ge
        greatest = math.inf if self.le is None else self.le
        if self.gt is not None:
            least = math.nextafter(self.gt, math.inf)
        if self.lt is not None:
            greatest = math.nextafter(self.lt, -math.inf)
        return least, greatest


@dataclass(frozen=True, slots=True)
class Former:
    """The former name of a key, or of its only value: still accepted, with a warning."""

    key: str | None = None
    value: str | None = None


# Metadata of a key that a written configuration leaves out while it is null.
LEFT_OUT_IF_NULL = {"is_left_out_if": None}

# A matrix of this width and height still has a countable number of bytes.
MAX_COUNT = 2**29

Count = Annotated[int, Bounds(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[int, Bounds(ge=0, le=MAX_COUNT)]
# torch's CPU generator uses 32 bits of a seed.
Seed = Annotated[int, Bounds(ge=0, le=2**32 - 1)]
PositiveFloat = Annotated[float, Bounds(gt=0)]
Probability = Annotated[float, Bounds(ge=0, lt=1)]


@functools.cache
def annotations(cls: type) -> dict[str, Any]:
    """Return the annotation of each field of a dataclass, with `Bounds` and `Former`."""
    return typing.get_type_hints(cls, include_extras=True)


def members(hint: Any) -> Iterator[Any]:
    """Yield the types in a union or below an annotation, or the type itself."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        yield from members(arguments[0])
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from members(argument)
    else:
        yield hint


def extras(hint: Any) -> Iterator[object]:
    """Yield every `Bounds` and `Former` of an annotation and of the members of its union."""
    yield from getattr(hint, "__metadata__", ())
    arguments = typing.get_args(hint)
    for argument in arguments[:1] if typing.get_origin(hint) is Annotated else arguments:
        yield from extras(argument)


def item_hint(hint: Any, index: int) -> Any:
    """Return the annotation of an item of a tuple, or of any value of a dict."""
    hint = next((x for x in members(hint) if typing.get_origin(x) in (tuple, dict)), hint)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is dict or arguments[-1] is Ellipsis:
        return arguments[typing.get_origin(hint) is dict]
    return arguments[min(index, len(arguments) - 1)]


def join(path: str, key: str) -> str:
    """Return the key path of a key below another."""
    return f"{path}.{key}" if path else key


def walk(value: object, path: str = "", hint: Any = None) -> Iterator[tuple[str, object, Any]]:
    """Yield the key path, the value and the annotation of a tree's nodes, parents first."""
    yield path, value, hint
    children: list[tuple[str, object, Any]] = []
    if dataclasses.is_dataclass(value):
        hints = annotations(value.__class__)
        children = [(name, getattr(value, name), hints[name]) for name in hints]
    elif isinstance(value, tuple):
        children = [(str(i), item, hint and item_hint(hint, i)) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        children = [(key, item, hint and item_hint(hint, 0)) for key, item in value.items()]
    for key, child, child_hint in children:
        yield from walk(child, join(path, key), child_hint)


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the key path and the value of every setting of a configuration, or of a part of it."""
    for node_path, node, _ in walk(value, path):
        if not dataclasses.is_dataclass(node) and not isinstance(node, dict | tuple):
            yield node_path, node


def check(value: object, path: str = "", hint: Any = None) -> Iterator[Problem]:
    """Yield every limit and rule that a configuration, or a part of it, breaks.

    A rule between numbers of which one is out of bounds could be broken by that number alone. So a
    rule counts if it is broken in the same words with either end of the bounds in its stead. The
    value of a field needs its annotation; all yielded key paths begin with `path`.
    """
    least, greatest = {}, {}
    for node_path, node, node_hint in walk(value, path, hint):
        if isinstance(node, int | float) and not isinstance(node, bool):
            for bounds in extras(node_hint):
                if isinstance(bounds, Bounds) and (rule := bounds.rule(node)) is not None:
                    least[node_path], greatest[node_path] = bounds.ends
                    yield Problem(node_path, rule, f"{node}")
    always = set(_broken_rules(_with_numbers(value, path, greatest), path))
    for problem in _broken_rules(_with_numbers(value, path, least), path):
        if problem in always:
            yield problem


def _broken_rules(value: object, path: str) -> Iterator[Problem]:
    """Yield the rules between keys that a tree breaks.

    Each has the value of its key, unless it names one itself.
    """
    for node_path, node, _ in walk(value, path):
        if hasattr(node, "conflicts"):
            values = dict(leaves(node))
            for problem in node.conflicts():
                value = values.get(problem.where)
                text = str(value).lower() if isinstance(value, bool) else str(value)
                got = text if problem.got is None and value is not None else problem.got
                yield replace(problem, where=join(node_path, problem.where), got=got)


def _with_numbers(value: Any, path: str, numbers: Mapping[str, float]) -> Any:
    """Return a tree with other numbers at some key paths."""

    def part(key: str, value: object) -> Any:
        return _with_numbers(value, join(path, key), numbers)

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = annotations(value.__class__)
        return replace(value, **{name: part(name, getattr(value, name)) for name in names})
    if isinstance(value, tuple):
        return tuple(part(str(index), item) for index, item in enumerate(value))
    if isinstance(value, dict):
        return {key: part(key, item) for key, item in value.items()}
    return numbers.get(path, value)


def checked(section: _Section, path: str) -> _Section:
    """Return a part of a configuration, at a key path, if it breaks no limit or rule."""
    if problems := list(check(section, path)):
        raise ConfigError(problems)
    return section
