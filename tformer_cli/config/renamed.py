"""Former names of configuration keys: files, overrides and stored settings may still use them."""

import dataclasses
import types
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import yaml

from tformer_cli.config.schema.check import annotations
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.limits import Former
from tformer_cli.errors import Problem


class RenamedKeysWarning(FutureWarning):
    """A file or an override uses former names of keys."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def current_path(path: str) -> str:
    """Return the current name of a key path."""
    return _current_path(path)[0]


def current_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings by key path, as an older version stored them, under their current names."""
    current = {}
    for old_path, value in settings.items():
        path, hints = _current_path(old_path)
        current[path] = _current_value(value, hints)
    return current


def with_current_names(root: yaml.Node, file: str) -> yaml.Node:
    """Return the syntax tree of a configuration with the current name of each key.

    Warns once of the former names in it; `file` is where they stand.
    """
    renamed: list[str] = []
    root = _renamed(root, [Config], "", renamed)
    if renamed:
        warn_of_names(file, renamed)
    return root


def warn_of_names(where: str, remedies: Sequence[str]) -> None:
    """Warn that a file or an override uses former names; each remedy is `NEW for OLD`."""
    problem = Problem(where, "uses renamed keys", remedy=f"write {', '.join(remedies)}")
    warnings.warn(RenamedKeysWarning(problem), stacklevel=1)


def _renamed(node: yaml.Node, hints: Sequence[Any], path: str, renamed: list[str]) -> yaml.Node:
    """Return a node with current names; nodes are copied, since an alias may share them."""
    if isinstance(node, yaml.ScalarNode):
        value = _current_value(node.value, hints)
        if value == node.value:
            return node
        renamed.append(f"{path}: {value} for {node.value}")
        return yaml.ScalarNode(node.tag, value, node.start_mark, node.end_mark, node.style)
    content: list[Any] = []
    if not hints or not isinstance(node, yaml.CollectionNode):
        return node
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            key, inner = _enter(hints, str(index))
            content.append(_renamed(item, inner, f"{path}.{key}", renamed))
    else:
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                content.append((key_node, value_node))
                continue
            key, inner = _enter(hints, key_node.value)
            key_path = f"{path}.{key}" if path else key
            if key != key_node.value:
                renamed.append(f"{key_path} for {key_node.value}")
                key_node = yaml.ScalarNode(
                    key_node.tag, key, key_node.start_mark, key_node.end_mark, key_node.style
                )
            content.append((key_node, _renamed(value_node, inner, key_path, renamed)))
    return type(node)(node.tag, content, node.start_mark, node.end_mark, node.flow_style)


def _current_path(path: str) -> tuple[str, list[Any]]:
    """Return the current name of a key path, and the types its value may have."""
    keys: list[str] = []
    hints: list[Any] = [Config]
    for old_key in path.split("."):
        key, hints = _enter(hints, old_key)
        keys.append(key)
    return ".".join(keys), hints


def _current_value(value: str, hints: Sequence[Any]) -> str:
    for hint in hints:
        for former in _formers(hint):
            if former.value == value:
                (current,) = typing.get_args(next(_members(hint)))
                return str(current)
    return value


def _enter(hints: Sequence[Any], key: str) -> tuple[str, list[Any]]:
    """Return the current name of a key of values of some types, and the types below it."""
    current: dict[str, list[Any]] = {}
    for member in (member for hint in hints for member in _members(hint)):
        if dataclasses.is_dataclass(member):
            for name, hint in annotations(typing.cast(type, member)).items():
                if name == key or any(former.key == key for former in _formers(hint)):
                    current.setdefault(name, []).append(hint)
        elif typing.get_origin(member) in (dict, tuple):
            current.setdefault(key, []).append(
                typing.get_args(member)[-1 if typing.get_origin(member) is dict else 0]
            )
    name = key if key in current or not current else next(iter(current))
    return name, current.get(name, [])


def _members(hint: Any) -> Iterator[Any]:
    """Yield the types in a union or under an annotation, or the type itself."""
    if typing.get_origin(hint) in (Annotated, typing.Union, types.UnionType):
        arguments = typing.get_args(hint)
        inner = arguments[:1] if typing.get_origin(hint) is Annotated else arguments
        for argument in inner:
            yield from _members(argument)
    else:
        yield hint


def _formers(hint: Any) -> Iterator[Former]:
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, Former):
            yield extra
