"""YAML text to a syntax tree, whose nodes have the line numbers of messages."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.fields import annotations
from tformer_cli.errors import ConfigError, Problem

OVERRIDE: Final = "`settings` "
"""Prefix of the name of a text that is an override, not a file."""
# A config is a page or two long.
MAX_CONFIG_BYTES = 1 << 20

# Composing takes about a millisecond per node.
_MAX_NODES = 10_000
_NULLS = ("", "~", "null", "Null", "NULL")
_MAX_SHOWN = 60
_COLON = re.compile(r":(\s|$)")
# Where YAML, and thus a mark, begins a new line.
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_ENDINGS = (".yaml", ".yml")
_NEW_CONFIG = "create a config with `tformer config new SOURCE TARGET`"
_TOP_KEY = re.compile(rf"^[\"']?({'|'.join(annotations(Config))})[\"']?:", re.MULTILINE)


def read_tree(path: Path) -> yaml.Node:
    """Return the syntax tree of a file."""
    text = _read(path)
    is_config = path.suffix in _ENDINGS or _TOP_KEY.search(text) is not None
    try:
        root = compose(text, str(path))
    except ConfigError:
        if is_config:
            raise
        raise _error(path, "is plain text, not a config", remedy=_NEW_CONFIG) from None
    if root is None:
        raise _error(path, "is empty", remedy=_NEW_CONFIG)
    if isinstance(root, yaml.ScalarNode):
        raise _error(path, "is plain text, not a config", remedy=_NEW_CONFIG)
    return root


def compose(text: str, name: str) -> yaml.Node | None:
    """Return the syntax tree of a YAML document, or None if it is empty.

    `name` is that of a file or an override (`OVERRIDE`), for messages.
    """
    try:
        loader = _Loader(text)
        loader.name = name
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        what, line, remedy = _fault(error, _LINE_END.split(text))
        raise _error(location(name, line), what, remedy=remedy) from None
    except yaml.reader.ReaderError as error:
        where = location(name, text.count("\n", 0, error.position))
        code = f"U+{ord(text[error.position]):04X}"
        raise _error(where, "has a control character", code) from None
    except RecursionError:
        raise _error(name, "is nested too deeply") from None
    except (ValueError, OverflowError):
        # Raised by chr() inside PyYAML.
        raise _error(name, "is not valid YAML: an escape names no character of Unicode") from None


def is_override(mark: yaml.Mark) -> bool:
    """Return whether a node comes from an override."""
    return str(mark.name).startswith(OVERRIDE)


def location(name: str, line: int) -> str:
    """Return where a line, counted from 0, of a file or an override is."""
    return name if name.startswith(OVERRIDE) else f"{name}:{line + 1}"


def located(key: str, location: str | None) -> str:
    """Return a key path after its location, if that is known; an override has its name already."""
    if location is None:
        return key
    return location if location == f"{OVERRIDE}{key}" else f"{location}: {key}"


def is_null(node: yaml.Node) -> bool:
    """Return whether a node is a null."""
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS


def shown(node: yaml.Node) -> str:
    """Return a node as one short line for a message."""
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
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def with_value(node: yaml.Node | None, keys: Sequence[str], value: yaml.Node) -> yaml.Node:
    """Return a tree with another value at the end of a key path, whose mappings are created.

    A key of the tree that has dots, such as the name of a test set, may be several of `keys`. Nodes
    are copied, since an alias may share them with another key.
    """
    if not keys:
        return value
    key, *rest = keys
    mark = value.start_mark
    if isinstance(node, yaml.SequenceNode):
        items = list(node.value)
        if key not in map(str, range(len(items))):
            what = f"{key} is no item of a list of {len(items)}; they are numbered from 0"
            raise _error(mark.name, what)
        items[int(key)] = with_value(items[int(key)], rest, value)
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark)
    tag, entries = "tag:yaml.org,2002:map", []
    if isinstance(node, yaml.MappingNode):
        tag, entries = node.tag, list(node.value)
    names = [name.value for name, _ in entries]
    for end in range(2, len(keys) + 1):
        if ".".join(keys[:end]) in names:
            key, rest = ".".join(keys[:end]), [*keys[end:]]
    index = next((i for i, (name, _) in enumerate(entries) if name.value == key), len(entries))
    written, old = entries[index] if index < len(entries) else (None, None)
    if written is None or not rest:
        written = yaml.ScalarNode("tag:yaml.org,2002:str", key, mark)
    entries[index : index + 1] = [(written, with_value(old, rest, value))]
    return yaml.MappingNode(tag, entries, mark)


def _read(path: Path) -> str:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A pipe or a device may never end.
            raise _error(path, "must be a regular file", remedy="write it to a file first")
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        remedy = "name a config, or create one with `tformer config new`"
        raise _error(path, "no such file", remedy=remedy) from None
    except IsADirectoryError:
        own = path / "config.yaml"
        remedy = f"name {own}" if own.is_file() else "name a YAML file in it"
        raise _error(path, "is a folder", remedy=remedy) from None
    except OSError as error:
        raise _error(path, "cannot be read", error.strerror) from None
    remedy_of_text = None if path.suffix in _ENDINGS else _NEW_CONFIG
    if len(data) > MAX_CONFIG_BYTES:
        raise _error(
            path, f"must be at most {MAX_CONFIG_BYTES >> 20} MiB large", remedy=remedy_of_text
        )
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        where = location(str(path), data.count(b"\n", 0, error.start))
        byte = f"byte 0x{data[error.start]:02X}"
        raise _error(where, "is not UTF-8", byte, remedy_of_text) from None


def _error(
    where: object, what: str, got: str | None = None, remedy: str | None = None
) -> ConfigError:
    return ConfigError([Problem(str(where), what, got, remedy)])


class _Loader(yaml.BaseLoader):
    """Composes a limited number of nodes; scalars stay text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_nodes = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; an alias counts as all nodes that it stands for."""
        is_alias = self.check_event(yaml.AliasEvent)
        before = self._num_nodes
        node = super().compose_node(parent, index)
        if node is not None:
            self._num_nodes += self._sizes.get(node, 1) if is_alias else 1
            self._sizes.setdefault(node, self._num_nodes - before)
        if self._num_nodes > _MAX_NODES:
            what = f"must have at most {_MAX_NODES:,} keys and values, those of aliases included"
            raise _error(self.name, what)
        return node


def _fault(error: yaml.MarkedYAMLError, lines: list[str]) -> tuple[str, int, str]:
    """Return what is wrong with a YAML text, in which line, and what to do about it."""
    problem = error.problem or ""
    line = error.problem_mark.line if error.problem_mark else 0
    column = error.problem_mark.column if error.problem_mark else 0
    begun = error.context_mark.line if error.context_mark else line
    if "found character '\\t'" in problem:
        return "has a tab, which YAML does not allow here", line, "indent with spaces"
    if "cannot start any token" in problem:
        return f"begins a value with {lines[line][column]}", line, "put the value in quotes"
    if "could not find expected ':'" in problem:
        return _without_colon(lines, begun)
    if "mapping values are not allowed" in problem:
        return _misplaced_colon(lines, line, column)
    for closing, opening in (("]", "["), ("}", "{")):
        if f"or '{closing}'" in problem:
            return f"has a {opening} that is not closed", begun, f"add {closing}"
    if "quoted scalar" in (error.context or "") and "escape" not in problem:
        return "has a quote that is not closed", begun, "add the other quote"
    if "escape" in problem:
        remedy = "double each backslash, or use single quotes"
        return "has an unknown escape in double quotes", line, remedy
    if "<block end>" in problem:
        return "is indented unlike its neighbors", line, "indent the keys of a section alike"
    if "alias" in problem or "alphabetic or numeric" in problem:
        return "begins a value with * or &", line, "put the value in quotes"
    if "single document" in (error.context or ""):
        return "begins a second document", line, "remove the line ---"
    remedy = "check colons, brackets, quotes and indentation"
    return "is not valid YAML", line, remedy


def _without_colon(lines: list[str], line: int) -> tuple[str, int, str]:
    first_word = lines[line].strip().removeprefix("- ").split(" ")[0]
    return f"has no colon after {first_word}", line, "write key: value"


def _misplaced_colon(lines: list[str], line: int, column: int) -> tuple[str, int, str]:
    """Tell a superfluous colon from one that is missing in the line above."""
    if _COLON.search(lines[line][:column]):
        return "has two colons", line, "put the value in quotes, or each key in a line of its own"
    above = line - 1
    while above >= 0 and not lines[above].split("#")[0].strip():
        above -= 1
    if above >= 0 and not _COLON.search(lines[above].split(" #")[0]):
        return _without_colon(lines, above)
    return "is indented unlike its neighbors", line, "indent the keys of a section alike"
