"""YAML text -> `Config`: the dataclass type of a field decides what its text means.

So `1e-4` is a number wherever a float is asked for, `no` is the Norwegian language, `12:30` is
never 750 and a key written twice is a mistake: YAML's own guesses about types are not used.
A choice (`kind: step`) without its `kind` is the schema's default one; where an override says the
`kind`, keys that the file has for another are dropped. Choices that have no `kind` are told apart
by the keys that they require.
Everything that is wrong is collected and raised at once, in the order of the file.
"""

import dataclasses
import json
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml

from tformer_cli.config.hint import BOOLEANS, NULL_WORDS, did_you_mean, kind_with, same_key
from tformer_cli.config.schema.check import annotations, check
from tformer_cli.config.schema.config import Config
from tformer_cli.config.syntax import OVERRIDE, is_override, place
from tformer_cli.errors import ConfigError, Problem

_FAILED: Final = object()
_NULLS = ("", "~", "null", "Null", "NULL")
_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_WHOLE = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}")
_NUMBER = re.compile(r"[-+]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_SURROGATE = re.compile("[\\ud800-\\udfff]")
_LONGEST_SHOWN = 60

_Order = tuple[int, int, int]


def parse_config(root: yaml.Node, file: str) -> Config:
    """Build the configuration that a syntax tree describes.

    Paths that stand in the file are left as they are; a path from elsewhere (`--set`) is relative
    to the current folder.

    Args:
        root: the tree; the marks of its nodes say which file or override they come from.
        file: the name of the file, for what stands nowhere.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    builder = _Builder(file)
    config = builder.build(root, Config, "")
    builder.check(config, "", Config)
    if builder.problems:
        raise ConfigError([problem for _, problem in sorted(builder.problems, key=lambda p: p[0])])
    assert isinstance(config, Config)
    return config


class _Builder:
    """Builds values from nodes, and keeps what goes wrong with its place.

    Each build method returns the value, or _FAILED after it has reported why.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[tuple[_Order, Problem]] = []
        self._marks: dict[str, yaml.Mark] = {}

    def build(self, node: yaml.Node, hint: Any, path: str, default: Any = None) -> object:
        """Build a value of the type `hint`; `default` is the member of a union without `kind`."""
        if node.tag not in _PLAIN_TAGS:
            return self._fail(
                path, "must have no tag", node.tag.replace("tag:yaml.org,2002:", "!!")
            )
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            return self.build(node, arguments[0], path, default)
        if origin in (typing.Union, types.UnionType):
            return self._union(node, arguments, path, default)
        if origin is Literal:
            return self._literal(node, arguments, path)
        if origin is tuple:
            return self._tuple(node, arguments, path)
        if origin is dict:
            return self._dict(node, arguments[1], path)
        if dataclasses.is_dataclass(hint):
            return self._choice(node, {}, path, hint)
        return self._scalar(node, hint, path)

    def check(self, value: object, path: str, hint: Any) -> None:
        """Report the limits and rules that a built value breaks."""
        if value is not _FAILED:
            for conflict in check(value, path, hint):
                self._report(conflict.key, conflict.what, conflict.got, conflict.remedy)

    def _union(self, node: yaml.Node, members: Sequence[Any], path: str, default: Any) -> object:
        if types.NoneType in members:
            return self._optional(node, members, path, default)
        if len(members) == 1:
            return self.build(node, members[0], path, default)
        if not all(hasattr(member, "kind") for member in members):
            return self._told_apart_by_keys(node, members, path)
        return self._choice(node, {_kind(member): member for member in members}, path, default)

    def _optional(self, node: yaml.Node, members: Sequence[Any], path: str, default: Any) -> object:
        """Build the value of a key that may be null."""
        if _is_null(node):
            return None
        num_problems = len(self.problems)
        others = [member for member in members if member is not types.NoneType]
        value = self._union(node, others, path, default)
        is_word = isinstance(node, yaml.ScalarNode) and node.value.lower() in NULL_WORDS
        if value is _FAILED and is_word:
            self._add_remedy(num_problems, "write null")
        return value

    def _add_remedy(self, num_problems: int, remedy: str) -> None:
        """Say what to do about the problems behind the first ones."""
        for index in range(num_problems, len(self.problems)):
            order, problem = self.problems[index]
            self.problems[index] = (order, dataclasses.replace(problem, remedy=remedy))

    def _choice(self, node: yaml.Node, kinds: dict[str, Any], path: str, default: Any) -> object:
        """Build the member of a union that `kind` names, or a dataclass that has no rivals."""
        entries = self._entries(node, path, kinds)
        if entries is None:
            return _FAILED
        chosen = default
        if kinds and "kind" in entries:
            num_problems = len(self.problems)
            kind = self._literal(entries["kind"], list(kinds), _join(path, "kind"))
            if kind is _FAILED:
                if remedy := kind_with(_shown(entries["kind"]), kinds):
                    self._add_remedy(num_problems, remedy)
                return _FAILED
            chosen = kinds[str(kind)]
        if not dataclasses.is_dataclass(chosen):
            what = f"is required: one of {_list(list(kinds))}"
            return self._fail(_join(path, "kind"), what, None)
        return self._dataclass(entries, chosen, kinds, path)

    def _told_apart_by_keys(self, node: yaml.Node, members: Sequence[Any], path: str) -> object:
        """Build the member of a union that has the required keys which are written."""
        entries = self._entries(node, path)
        if entries is None:
            return _FAILED
        named = [member for member in members if entries.keys() & set(_required_keys(member))]
        if len(named) != 1:
            forms = ", or ".join(" and ".join(_required_keys(member)) for member in members)
            return self._fail(path, f"must have {forms}", _list(list(entries)) or "nothing")
        return self._dataclass(entries, named[0], {}, path)

    def _dataclass(
        self, entries: dict[str, yaml.Node], cls: Any, kinds: dict[str, Any], path: str
    ) -> object:
        hints = annotations(cls)
        fields = {part.name: part for part in dataclasses.fields(cls)}
        parts: dict[str, Any] = {}
        complete = True
        for key, node in entries.items():
            if key in fields:
                default = fields[key].default_factory
                parts[key] = self.build(node, hints[key], _join(path, key), default)
            elif not (_owners(key, kinds) and self._is_dropped(node, path)):
                self._report(_join(path, key), *_unknown_key(key, cls, kinds))
                complete = False
        for name, part in fields.items():
            if name not in entries and _is_required(part):
                self._report(_join(path, name), "is required")
                complete = False
        if complete and _FAILED not in parts.values():
            return cls(**parts)
        return self._incomplete(path, parts, hints)

    def _is_dropped(self, node: yaml.Node, path: str) -> bool:
        """Say whether a value is from the file and the `kind` beside it from an override."""
        kind = self._marks.get(_join(path, "kind"))
        return kind is not None and is_override(kind) and not is_override(node.start_mark)

    def _tuple(self, node: yaml.Node, hints: Sequence[Any], path: str) -> object:
        if not isinstance(node, yaml.SequenceNode):
            return self._fail(path, "must be a list", _shown(node))
        if hints[-1] is Ellipsis:
            hints = [hints[0]] * len(node.value)
        elif len(node.value) != len(hints):
            got = f"a list of {len(node.value)}"
            return self._fail(path, f"must be a list of {len(hints)}", got)
        parts: dict[str, object] = {}
        for index, (item, hint) in enumerate(zip(node.value, hints, strict=True)):
            item_path = _join(path, str(index))
            self._marks[item_path] = item.start_mark
            parts[str(index)] = self.build(item, hint, item_path)
        if _FAILED not in parts.values():
            return tuple(parts.values())
        return self._incomplete(path, parts, dict(zip(parts, hints, strict=True)))

    def _dict(self, node: yaml.Node, hint: Any, path: str) -> object:
        entries = self._entries(node, path)
        if entries is None:
            return _FAILED
        parts = {key: self.build(item, hint, _join(path, key)) for key, item in entries.items()}
        if _FAILED not in parts.values():
            return parts
        return self._incomplete(path, parts, dict.fromkeys(parts, hint))

    def _incomplete(self, path: str, parts: dict[str, object], hints: dict[str, Any]) -> object:
        """Check the parts of a whole that cannot be built, for nothing above will."""
        for key, value in parts.items():
            self.check(value, _join(path, key), hints[key])
        return _FAILED

    def _entries(
        self, node: yaml.Node, path: str, kinds: Iterable[str] = ()
    ) -> dict[str, yaml.Node] | None:
        """Return the entries of a mapping by key, and remember where each key stands."""
        if not isinstance(node, yaml.MappingNode):
            shown = _shown(node)
            remedy = f"write {{kind: {shown}}}" if shown in kinds else None
            self._report(path, "must be a mapping (key: value)", shown, remedy)
            return None
        entries: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._report(path, "has a key that is not a word", _shown(key), mark=key.start_mark)
                continue
            key_path = _join(path, key.value)
            if key.value in entries:
                first = self._marks[key_path]
                what = f"is written twice, first at {place(first.name, first.line)}"
                self._report(key_path, what, mark=key.start_mark)
                continue
            entries[key.value] = value
            self._marks[key_path] = key.start_mark
        return entries

    def _literal(self, node: yaml.Node, choices: Sequence[str], path: str) -> object:
        if isinstance(node, yaml.ScalarNode) and node.value in choices:
            return node.value
        shown = _shown(node)
        what = f"must be {choices[0]}" if len(choices) == 1 else f"must be one of {_list(choices)}"
        return self._fail(path, what, shown, did_you_mean(shown, choices))

    def _scalar(self, node: yaml.Node, hint: type, path: str) -> object:
        what, read = _SCALARS[hint]
        value = None
        if isinstance(node, yaml.ScalarNode) and not _is_null(node):
            is_text = hint in (str, Path)
            # Quotes say that a scalar is text, whatever it looks like.
            value = read(node.value) if is_text or node.style is None else None
        if value is None:
            shown = _shown(node)
            remedy = BOOLEANS.get(shown.lower()) if hint is bool else None
            return self._fail(path, what, shown, remedy)
        if isinstance(value, Path) and is_override(node.start_mark):
            return Path.cwd() / value
        return value

    def _fail(self, path: str, what: str, got: str | None, remedy: str | None = None) -> object:
        self._report(path, what, got, remedy)
        return _FAILED

    def _report(
        self,
        path: str,
        what: str,
        got: str | None = None,
        remedy: str | None = None,
        mark: yaml.Mark | None = None,
    ) -> None:
        """Keep a problem; without a `mark`, it stands where its nearest written ancestor does."""
        written = path
        while mark is None and written:
            mark = self._marks.get(written)
            written = written.rpartition(".")[0]
        # The file as a whole comes first, then its lines, then the overrides.
        where, order = self.file, (0, 0, 0)
        if mark is not None:
            where = place(mark.name, mark.line)
            order = (2 if is_override(mark) else 1, mark.line, mark.column)
        subject = "" if not path or where == f"{OVERRIDE}{path}" else f"{path}: "
        self.problems.append((order, Problem(where, f"{subject}{what}", got, remedy)))


def _integer(text: str) -> int | None:
    # Python refuses to read numbers of thousands of digits.
    if _INTEGER.fullmatch(text) and len(text) < 100:
        return int(text)
    if _WHOLE.fullmatch(text) and (value := _number(text)) is not None and value.is_integer():
        return int(value)
    return None


def _number(text: str) -> float | None:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def _text(text: str) -> str | None:
    """Return a text, or None if an escape in it is half a character of Unicode."""
    return text if text.isascii() or not _SURROGATE.search(text) else None


def _path(text: str) -> Path | None:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        # A surrogate, and none of those that stand for bytes which are not UTF-8.
        return None
    # Unlike the method of Path, this one leaves the name of an unknown user alone.
    return Path(os.path.expanduser(text)) if text and "\0" not in text else None


_SCALARS: Final[dict[type, tuple[str, Callable[[str], object]]]] = {
    bool: ("must be true or false", {"true": True, "false": False}.get),
    int: ("must be a whole number", _integer),
    float: ("must be a number", _number),
    str: ("must be text", _text),
    Path: ("must be a path", _path),
}


def _unknown_key(key: str, cls: Any, kinds: dict[str, Any]) -> tuple[str, None, str | None]:
    """Return what is wrong with a key that `cls` lacks, nothing, and what to do about it."""
    if owners := _owners(key, kinds):
        this = f"this one is kind: {_kind(cls)}"
        return f"belongs to kind: {' or '.join(owners)}", None, this
    keys = _keys(cls)
    inner_keys = list(_inner_keys(cls))
    meant = (
        same_key(key, [*keys, *inner_keys])
        or did_you_mean(key, keys)
        or did_you_mean(key, inner_keys)
    )
    return "no such key", None, meant or f"the keys here are {_list(keys)}"


def _owners(key: str, kinds: dict[str, Any]) -> list[str]:
    """Return the kinds that have a key."""
    return [kind for kind, rival in kinds.items() if key in _keys(rival)]


def _keys(cls: Any) -> list[str]:
    return [part.name for part in dataclasses.fields(cls)]


def _required_keys(cls: Any) -> list[str]:
    return [part.name for part in dataclasses.fields(cls) if _is_required(part)]


def _inner_keys(cls: Any) -> Iterator[str]:
    """Yield the paths of the keys one level below those of `cls`."""
    for name, hint in typing.get_type_hints(cls).items():
        for inner in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(inner):
                yield from (f"{name}.{key}" for key in _keys(inner))


def _kind(cls: Any) -> str:
    """Return the value of `kind` that stands for a member of a union."""
    return str(cls.__dataclass_fields__["kind"].default)


def _is_required(part: dataclasses.Field[Any]) -> bool:
    return part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS


def _shown(node: yaml.Node) -> str:
    """Return a node as it may stand in a message: one line, and not a long one."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = str(node.value)
    if isinstance(node, yaml.ScalarNode) and node.style is not None:
        text = json.dumps(text, ensure_ascii=False)
    if not text:
        return "nothing"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _list(words: Sequence[str]) -> str:
    return ", ".join(words)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
