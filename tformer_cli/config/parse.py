"""Syntax tree to `Config`: the annotation of a field decides what its text means.

So `1e-4` is a number if a float is expected, `no` is the Norwegian language, `12:30` is never 750,
and a key written twice is an error: YAML's implicit types are not used. A union without a written
`kind` is the schema's default; one whose members have no `kind` is recognized by its required
keys. If an override sets the `kind`, the file's keys of another kind are dropped. All errors are
collected and raised at once, in the order of the file.
"""

import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import annotations, check, item_hint, join, members
from tformer_cli.config.yaml_tree import OVERRIDE, is_null, is_override, location, shown
from tformer_cli.errors import ConfigError, Problem, has_surrogate

_FAILED: Final = object()
_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_WHOLE = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}")
_NUMBER = re.compile(r"[-+]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")

# Null in other languages than YAML.
_NULL_WORDS = frozenset({"none", "nil", "no", "off", "false"})
# What to write instead of other words for true and false.
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), "write true"),
    **dict.fromkeys(("false", "no", "off", "0"), "write false"),
}
# Names of our keys in other toolkits.
SYNONYMS = {
    "beam": "beam_size",
    "num_beams": "beam_size",
    "lr": "learning_rate",
    "warmup": "warmup_steps",
    "batch_size": "batch_tokens",
    "max_tokens": "batch_tokens",
    "update_freq": "gradient_accumulation_steps",
    "train_steps": "max_steps",
    "d_model": "dim",
    "hidden_size": "dim",
    "heads": "num_heads",
    "num_attention_heads": "num_heads",
    "ffn_dim": "feedforward_dim",
    "d_ff": "feedforward_dim",
    "src": "source",
    "tgt": "target",
    "trg": "target",
}

_Order = tuple[int, int, int]


def parse_config(
    root: yaml.Node, file: str, others: Sequence[Problem] = ()
) -> tuple[Config, dict[str, str]]:
    """Build the configuration that a syntax tree describes, and say where each key is written.

    Paths in the file stay as they are; a path in an override is relative to the current folder.
    `file` is its name, for problems without a line. Problems of the tree come before the others.
    """
    builder = _Builder(file)
    config = builder.build(root, Config, "")
    builder.check(config, "", Config)
    problems = [problem for _, problem in sorted(builder.problems, key=lambda pair: pair[0])]
    if problems or others:
        raise ConfigError([*problems, *others])
    assert isinstance(config, Config)
    return config, {key: location(mark.name, mark.line) for key, mark in builder.marks.items()}


class _Builder:
    """Builds values from nodes and collects problems with their locations.

    Each build method returns the value, or after it has reported a problem _FAILED, or NaN where a
    number is wanted.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[tuple[_Order, Problem]] = []
        self.marks: dict[str, yaml.Mark] = {}
        self.no_numbers = set[str]()  # paths where a number is wanted, and none is

    def build(self, node: yaml.Node, hint: Any, path: str, default: Any = None) -> object:
        """Build a value of an annotation; `default` is the member of a union without `kind`."""
        if node.tag not in _PLAIN_TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            return self._fail(path, "must have no tag", tag)
        options = [option for option in members(hint) if option is not types.NoneType]
        is_optional = types.NoneType in members(hint)
        if is_optional and is_null(node):
            return None
        num_problems = len(self.problems)
        value = self._build_one_of(node, options, path, default)
        is_word = isinstance(node, yaml.ScalarNode) and node.value.lower() in _NULL_WORDS
        if value is _FAILED and is_optional and is_word:
            self._set_remedy(num_problems, "write null")
        elif value is _FAILED and options in ([int], [float]):
            # Out of all bounds, so `check` still judges the rules between other keys.
            self.no_numbers.add(path)
            return math.nan
        return value

    def check(self, value: object, path: str, hint: Any) -> None:
        """Report the limits and rules that a built value breaks."""
        if value is not _FAILED:
            for problem in check(value, path, hint):
                if problem.where not in self.no_numbers:
                    self._fail(problem.where, problem.what, problem.got, problem.remedy)

    def _build_one_of(
        self, node: yaml.Node, options: Sequence[Any], path: str, default: Any
    ) -> object:
        lists = [option for option in options if typing.get_origin(option) is tuple]
        if isinstance(node, yaml.SequenceNode) and lists:
            options = lists
        elif len(options) > len(lists):
            options = [option for option in options if option not in lists]
        if all(map(dataclasses.is_dataclass, options)):
            return self._dataclass(node, options, path, default)
        (hint,) = options
        origin = typing.get_origin(hint)
        if origin is Literal:
            return self._literal(node, typing.get_args(hint), path)
        if origin is tuple:
            return self._tuple(node, hint, path)
        if origin is dict:
            return self._dict(node, item_hint(hint, 0), path)
        return self._scalar(node, hint, path)

    def _dataclass(
        self, node: yaml.Node, classes: Sequence[Any], path: str, default: Any
    ) -> object:
        """Build a dataclass, or the member of a union that the keys choose."""
        kinds = {_kind(cls): cls for cls in classes if len(classes) > 1 and hasattr(cls, "kind")}
        entries = self._entries(node, path, kinds)
        if entries is None:
            return _FAILED
        if len(classes) == 1:
            return self._fields(entries, classes[0], kinds, path)
        chosen = default if default in classes else None
        if not kinds:
            named = [cls for cls in classes if entries.keys() & set(_required_keys(cls))]
            if len(named) != 1:
                forms = ", or ".join(" and ".join(_required_keys(cls)) for cls in classes)
                return self._fail(path, f"must have {forms}", ", ".join(entries) or "nothing")
            chosen = named[0]
        elif "kind" in entries:
            num_problems = len(self.problems)
            kind = self._literal(entries["kind"], list(kinds), join(path, "kind"))
            if kind is _FAILED:
                if remedy := _kind_with_choice(shown(entries["kind"]), kinds):
                    self._set_remedy(num_problems, remedy)
                return _FAILED
            chosen = kinds[str(kind)]
        elif chosen is None:
            what = f"is required: one of {', '.join(kinds)}"
            return self._fail(join(path, "kind"), what, None)
        return self._fields(entries, chosen, kinds, path)

    def _fields(
        self, entries: dict[str, yaml.Node], cls: Any, kinds: Mapping[str, Any], path: str
    ) -> object:
        hints = annotations(cls)
        fields = {part.name: part for part in dataclasses.fields(cls)}
        parts: dict[str, Any] = {}
        for key, node in entries.items():
            if key in fields:
                default = fields[key].default_factory
                parts[key] = self.build(node, hints[key], join(path, key), default)
            elif not (_owners(key, kinds) and self._is_dropped(node, path)):
                parts[key] = self._fail(join(path, key), *_unknown_key(key, cls, kinds))
        for name in _required_keys(cls):
            if name not in entries:
                parts[name] = self._fail(join(path, name), "is required")
        return self._whole(parts, hints, path, lambda parts: cls(**parts))

    def _is_dropped(self, node: yaml.Node, path: str) -> bool:
        """Return whether a value is from the file and the `kind` beside it from an override."""
        kind = self.marks.get(join(path, "kind"))
        return kind is not None and is_override(kind) and not is_override(node.start_mark)

    def _tuple(self, node: yaml.Node, hint: Any, path: str) -> object:
        if not isinstance(node, yaml.SequenceNode):
            return self._fail(path, "must be a list", shown(node))
        hints = typing.get_args(hint)
        if hints[-1] is not Ellipsis and len(node.value) != len(hints):
            got = f"a list of {len(node.value)}"
            return self._fail(path, f"must be a list of {len(hints)}", got)
        parts, item_hints = {}, {}
        for index, item in enumerate(node.value):
            key = str(index)
            self.marks[join(path, key)] = item.start_mark
            item_hints[key] = item_hint(hint, index)
            parts[key] = self.build(item, item_hints[key], join(path, key))
        return self._whole(parts, item_hints, path, lambda parts: tuple(parts.values()))

    def _dict(self, node: yaml.Node, hint: Any, path: str) -> object:
        entries = self._entries(node, path)
        if entries is None:
            return _FAILED
        parts = {}
        for key, item in entries.items():
            num_problems = len(self.problems)
            parts[key] = self.build(item, hint, join(path, key))
            if parts[key] is _FAILED and _is_deeper_override(item):
                self._set_remedy(num_problems, f"write {path}={{NAME: ...}} if the name has dots")
        return self._whole(parts, dict.fromkeys(parts, hint), path, dict)

    def _whole(
        self,
        parts: dict[str, Any],
        hints: Mapping[str, Any],
        path: str,
        make: Callable[[dict[str, Any]], object],
    ) -> object:
        """Make a value of its parts; if some have failed, check the others."""
        if _FAILED not in parts.values():
            return make(parts)
        for key, value in parts.items():
            self.check(value, join(path, key), hints.get(key))
        return _FAILED

    def _entries(
        self, node: yaml.Node, path: str, kinds: Iterable[str] = ()
    ) -> dict[str, yaml.Node] | None:
        """Return the entries of a mapping by key, and store the location of each key."""
        if not isinstance(node, yaml.MappingNode):
            got = shown(node)
            remedy = f"write {{kind: {got}}}" if got in kinds else None
            self._fail(path, "must be a mapping of keys to values", got, remedy)
            return None
        entries: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fail(path, "has a key that is not a word", shown(key), mark=key.start_mark)
                continue
            key_path = join(path, key.value)
            if key.value in entries:
                first = self.marks[key_path]
                what = f"is written twice, first at {location(first.name, first.line)}"
                self._fail(key_path, what, mark=key.start_mark)
                continue
            entries[key.value] = value
            self.marks[key_path] = key.start_mark
        return entries

    def _literal(self, node: yaml.Node, choices: Sequence[str], path: str) -> object:
        if isinstance(node, yaml.ScalarNode) and node.value in choices:
            return node.value
        got = shown(node)
        listed = ", ".join(choices)
        what = f"must be {listed}" if len(choices) == 1 else f"must be one of {listed}"
        return self._fail(path, what, got, did_you_mean(got, choices))

    def _scalar(self, node: yaml.Node, hint: type, path: str) -> object:
        what, read = _SCALARS[hint]
        value = None
        if isinstance(node, yaml.ScalarNode) and not is_null(node):
            # A quoted scalar is text.
            value = read(node.value) if hint in (str, Path) or node.style is None else None
        if value is None:
            got = shown(node)
            remedy = _BOOLEANS.get(got.lower()) if hint is bool else None
            return self._fail(path, what, got, remedy)
        if isinstance(value, Path) and is_override(node.start_mark):
            return Path.cwd() / value
        return value

    def _set_remedy(self, num_problems: int, remedy: str) -> None:
        """Set the remedy of all problems after the first ones."""
        for index in range(num_problems, len(self.problems)):
            order, problem = self.problems[index]
            self.problems[index] = (order, dataclasses.replace(problem, remedy=remedy))

    def _fail(
        self,
        path: str,
        what: str,
        got: str | None = None,
        remedy: str | None = None,
        mark: yaml.Mark | None = None,
    ) -> object:
        """Add a problem, located at `mark` or at the nearest written ancestor of its key."""
        written = path
        while mark is None and written:
            mark = self.marks.get(written)
            written = written.rpartition(".")[0]
        # The file as a whole comes first, then its lines, then the overrides.
        where = self.file
        order = (0, 0, 0)
        if mark is not None:
            where = location(mark.name, mark.line)
            order = (2 if is_override(mark) else 1, mark.line, mark.column)
        subject = "" if not path or where == f"{OVERRIDE}{path}" else f"{path}: "
        self.problems.append((order, Problem(where, f"{subject}{what}", got, remedy)))
        return _FAILED


def _is_deeper_override(item: yaml.Node) -> bool:
    """Return whether the key path of an override goes on below a key of an item."""
    return isinstance(item, yaml.MappingNode) and any(
        isinstance(value, yaml.MappingNode) and is_override(value.start_mark)
        for _, value in item.value
    )


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
    """Return a text, or None if an escape in it is half a surrogate pair."""
    return None if has_surrogate(text) else text


def _path(text: str) -> Path | None:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        # A surrogate that does not stand for a byte outside UTF-8.
        return None
    # Unlike Path.expanduser, this keeps the name of an unknown user.
    return Path(os.path.expanduser(text)) if text and "\0" not in text else None


_SCALARS: Final[dict[type, tuple[str, Callable[[str], object]]]] = {
    bool: ("must be true or false", {"true": True, "false": False}.get),
    int: ("must be a whole number", _integer),
    float: ("must be a number", _number),
    str: ("must be text", _text),
    Path: ("must be a path", _path),
}


def did_you_mean(text: str, choices: Iterable[str]) -> str | None:
    """Return a question for the choice whose last key is closest to a text, if one is close."""
    paths = {path.rpartition(".")[2].lower(): path for path in choices}
    close = difflib.get_close_matches(text.lower(), paths, n=1)
    return f"did you mean {paths[close[0]]}?" if close else None


def _unknown_key(key: str, cls: Any, kinds: Mapping[str, Any]) -> tuple[str, None, str | None]:
    """Return the rule that a key breaks which `cls` lacks, no value, and the remedy."""
    if owners := _owners(key, kinds):
        this = f"this one is kind: {_kind(cls)}"
        return f"belongs to kind: {' or '.join(owners)}", None, this
    keys, inner_keys = list(annotations(cls)), list(_inner_keys(cls))
    synonym = SYNONYMS.get(key)
    same = [path for path in (*keys, *inner_keys) if path.rpartition(".")[2] == synonym]
    meant = f"did you mean {same[0]}?" if same else None
    meant = meant or did_you_mean(key, keys) or did_you_mean(key, inner_keys)
    return "no such key", None, meant or f"the keys here are {', '.join(keys)}"


def _owners(key: str, kinds: Mapping[str, Any]) -> list[str]:
    """Return the kinds that have a key."""
    return [kind for kind, cls in kinds.items() if key in annotations(cls)]


def _required_keys(cls: Any) -> list[str]:
    missing = dataclasses.MISSING
    return [
        part.name
        for part in dataclasses.fields(cls)
        if part.default is missing and part.default_factory is missing
    ]


def _inner_keys(cls: Any) -> Iterator[str]:
    """Yield the paths of the keys one level below those of `cls`."""
    for name, hint in annotations(cls).items():
        for inner in filter(dataclasses.is_dataclass, members(hint)):
            yield from (f"{name}.{key}" for key in annotations(typing.cast(type, inner)))


def _kind(cls: Any) -> str:
    return str(cls.__dataclass_fields__["kind"].default)


def _kind_with_choice(word: str, kinds: Mapping[str, Any]) -> str | None:
    """Return what to write for a word that is no kind, but a choice of another key of a kind."""
    for kind, cls in kinds.items():
        for key, hint in annotations(cls).items():
            choices = [typing.get_args(m) for m in members(hint) if typing.get_origin(m) is Literal]
            if key != "kind" and any(word.lower() in texts for texts in choices):
                return f"write {{kind: {kind}, {key}: {word.lower()}}}"
    return None
