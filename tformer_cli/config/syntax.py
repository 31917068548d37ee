"""YAML text -> syntax tree, and what is wrong with text that is no YAML, in plain words."""

import re
from typing import Final

import yaml

from tformer_cli.errors import ConfigError, Problem

OVERRIDE: Final = "`settings` "
"""How the name of a text begins that is not a file but an override."""

# Reading takes about a millisecond a node.
_MAX_NODES = 10_000

_COLON = re.compile(r":(\s|$)")


def compose(text: str, name: str) -> yaml.Node | None:
    """Return the syntax tree of a YAML text, or None if there is nothing in it.

    Args:
        text: one YAML document.
        name: what the text is called in messages: a file, or that of an override.

    Raises:
        ConfigError: the text is not YAML.
    """
    try:
        loader = _Loader(text)
        loader.name = name
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        what, line, remedy = _fault(error, text.split("\n"))
        raise ConfigError([Problem(place(name, line), what, remedy=remedy)]) from None
    except yaml.reader.ReaderError as error:
        where = place(name, text.count("\n", 0, error.position))
        got = f"U+{ord(text[error.position]):04X}"
        raise ConfigError([Problem(where, "has a control character", got)]) from None
    except RecursionError:
        raise ConfigError([Problem(name, "is nested too deeply")]) from None
    except (ValueError, OverflowError):
        # Only chr() raises these, and PyYAML lets them pass.
        what = "is not valid YAML: an escape names no character of Unicode"
        raise ConfigError([Problem(name, what)]) from None


def is_override(mark: yaml.Mark) -> bool:
    """Return whether a node comes from an override."""
    return str(mark.name).startswith(OVERRIDE)


def place(name: str, line: int) -> str:
    """Return the place of a line, counted from 0, of a file or an override."""
    return name if name.startswith(OVERRIDE) else f"{name}:{line + 1}"


class _Loader(yaml.BaseLoader):
    """Composes a limited number of nodes; scalars stay the text they are, whatever their type."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_nodes = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; an alias counts as all nodes that it stands for.

        Raises:
            ConfigError: there are too many.
        """
        is_alias, before = self.check_event(yaml.AliasEvent), self._num_nodes
        node = super().compose_node(parent, index)
        if node is not None:
            self._num_nodes += self._sizes.get(node, 1) if is_alias else 1
            self._sizes.setdefault(node, self._num_nodes - before)
        if self._num_nodes > _MAX_NODES:
            what = f"must have at most {_MAX_NODES:,} keys and values, those of aliases included"
            raise ConfigError([Problem(str(self.name), what)])
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
    return f"has no colon after {_first_word(lines[line])}", line, "write key: value"


def _misplaced_colon(lines: list[str], line: int, column: int) -> tuple[str, int, str]:
    """Tell a colon too many from one that is missing in the line above."""
    if _COLON.search(lines[line][:column]):
        return "has two colons", line, "put the value in quotes, or each key in a line of its own"
    above = line - 1
    while above >= 0 and not lines[above].split("#")[0].strip():
        above -= 1
    if above >= 0 and not _COLON.search(lines[above].split(" #")[0]):
        return _without_colon(lines, above)
    return "is indented unlike its neighbors", line, "indent the keys of a section alike"


def _first_word(line: str) -> str:
    return line.strip().removeprefix("- ").split(" ")[0]
