"""Former names of configuration keys: files, overrides and stored settings may still use them."""

import dataclasses
import functools
import re
import typing
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import Former, annotations, extras, item_hint, join, members
from tformer_cli.errors import Problem, ProblemWarning

# Of a file's former names, which may be dozens in the config.yaml of an old run.
MAX_SHOWN = 3


class RenamedKeysWarning(ProblemWarning, FutureWarning):
    """A file or an override uses former names of keys."""


def current_path(path: str) -> str:
    """Return a key path under its current name."""
    return _enter_path(path)[0]


def current_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings by key path, as an older version stored them, under their current names."""
    current = {}
    for old_path, value in settings.items():
        path, hints = _enter_path(old_path)
        current[path] = _current_value(value, hints)
    return current


def former_repr(section: Any) -> str:
    """Return the repr of a section under the former names of its keys, as stored hashes have it."""
    text = repr(section)
    for name, hint in annotations(typing.cast(type, type(section))).items():
        for former in _formers(hint):
            if former.key is not None:
                text = re.sub(rf"\b{name}=", f"{former.key}=", text)
    return text


def with_current_names(root: yaml.Node, name: str) -> yaml.Node:
    """Return the syntax tree of a configuration with current names.

    All former names of the text `name` make one warning.
    """
    renamed: list[str] = []
    root = _renamed(root, [Config], "", renamed)
    if renamed:
        warn_of_renamed(name, renamed)
    return root


def warn_of_renamed(where: str, remedies: Sequence[str]) -> None:
    """Warn that a file or an override uses former names; a remedy is `NEW for OLD`."""
    shown = ", ".join(remedies[:MAX_SHOWN])
    if len(remedies) > MAX_SHOWN:
        shown += f", and {len(remedies) - MAX_SHOWN} more"
    problem = Problem(where, "uses renamed keys", remedy=f"write {shown}")
    warnings.warn(RenamedKeysWarning(problem), stacklevel=1)


def _renamed(node: yaml.Node, hints: Sequence[Any], path: str, renamed: list[str]) -> yaml.Node:
    """Return a node with current names; it is copied, since an alias may share it."""
    if isinstance(node, yaml.ScalarNode):
        value = _current_value(node.value, hints)
        return _with_text(node, value, f"{path}: {value}", renamed)
    content: list[Any] = []
    if not hints or not isinstance(node, yaml.CollectionNode):
        return node
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            key, inner = _enter(hints, str(index))
            content.append(_renamed(item, inner, join(path, key), renamed))
    else:
        for key_node, value in node.value:
            inner, key_path = [], path
            if isinstance(key_node, yaml.ScalarNode):
                key, inner = _enter(hints, key_node.value)
                key_path = join(path, key)
                key_node = _with_text(key_node, key, key_path, renamed)
            content.append((key_node, _renamed(value, inner, key_path, renamed)))
    return type(node)(node.tag, content, node.start_mark, node.end_mark, node.flow_style)


def _with_text(
    node: yaml.ScalarNode, text: str, remedy: str, renamed: list[str]
) -> yaml.ScalarNode:
    if text == node.value:
        return node
    renamed.append(f"{remedy} for {node.value}")
    return yaml.ScalarNode(node.tag, text, node.start_mark, node.end_mark, node.style)


@functools.lru_cache(maxsize=1024)
def _enter_path(path: str) -> tuple[str, list[Any]]:
    """Return a key path under its current name, and the annotations of its value."""
    keys: list[str] = []
    hints: list[Any] = [Config]
    for old_key in path.split("."):
        key, hints = _enter(hints, old_key)
        keys.append(key)
    return ".".join(keys), hints


def _enter(hints: Iterable[Any], key: str) -> tuple[str, list[Any]]:
    """Return the current name of a key below some annotations, and the annotations of its value."""
    below: dict[str, list[Any]] = {}
    for member in (member for hint in hints for member in members(hint)):
        if dataclasses.is_dataclass(member):
            named = _keys_by_name(typing.cast(type, member)).get(key, {})
            for name, hint in named.items():
                below.setdefault(name, []).append(hint)
        elif typing.get_origin(member) in (dict, tuple):
            below.setdefault(key, []).append(item_hint(member, 0))
    name = key if key in below or not below else next(iter(below))
    return name, below.get(name, [])


@functools.cache
def _keys_by_name(section: type) -> dict[str, dict[str, Any]]:
    """Return by every name, current or former, the annotations of the keys that have or had it."""
    keys: dict[str, dict[str, Any]] = {}
    for name, hint in annotations(section).items():
        formers = [former.key for former in _formers(hint) if former.key is not None]
        for each in (name, *formers):
            keys.setdefault(each, {})[name] = hint
    return keys


def _current_value(value: str, hints: Iterable[Any]) -> str:
    for hint in hints:
        if any(former.value == value for former in _formers(hint)):
            ((current,),) = map(typing.get_args, members(hint))
            return str(current)
    return value


def _formers(hint: Any) -> list[Former]:
    return [extra for extra in extras(hint) if isinstance(extra, Former)]
