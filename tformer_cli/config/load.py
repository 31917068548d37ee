"""Reading a configuration from its file and from settings, and writing it in full."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tformer_cli.config.hint import our_key
from tformer_cli.config.parse import parse_config
from tformer_cli.config.renamed import current_path, warn_of_names, with_current_names
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, Text
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.config.syntax import OVERRIDE, compose, place
from tformer_cli.errors import ConfigError, Problem

# What YAML folds to a blank where it is not escaped.
LINE_ENDS = frozenset("\n\x85\u2028\u2029")

# Of a config, which is a page or two long.
MAX_BYTES = 1 << 20

_ENDINGS = (".yaml", ".yml")
_NEW_CONFIG = "begin a config with `tformer config new SOURCE TARGET`"
_TOP_KEY = re.compile(
    rf"^[\"']?({'|'.join(part.name for part in dataclasses.fields(Config))})[\"']?:", re.MULTILINE
)

_Text = TypeVar("_Text", bound=Text)


def load_config(path: str | os.PathLike[str], settings: Sequence[str] = ()) -> Config:
    """Read a configuration.

    Paths in the file are relative to `data.root`, and that to the folder of the file; paths in an
    override are relative to the current folder. In the configuration they are all absolute.

    Args:
        path: a YAML file.
        settings: `training.max_steps=100`: a key path and its value in YAML. An item of a list
            goes by its number from 0 (`data.train.0.weight=2`). Another kind
            (`tokenizer.kind=char`) drops the keys of the file that it does not have.

    Raises:
        ConfigError: everything that is wrong with the file and the settings.
    """
    path = Path(path)
    root = _tree(path)
    return _with_absolute_paths(_changed(root, str(path), settings, []), path.parent)


def changed_decoding(config: Config, settings: Sequence[str]) -> DecodingConfig:
    """Return the search of a configuration with some of its keys changed.

    Args:
        config: complete, as that of a run is.
        settings: `decoding.beam_size=8`; `decoding.kind=sample` drops the keys that sampling does
            not have, and `decoding={kind: sample}` replaces the whole section.

    Raises:
        ConfigError: everything that is wrong with them.
    """
    if not settings:
        return config.decoding
    of_decoding = [one for one in settings if one.startswith(("decoding.", "decoding="))]
    problems = [
        Problem(
            f"{OVERRIDE}{one.partition('=')[0]}",
            "only keys of decoding can be changed here",
            remedy=_search_setting(one, config.decoding),
        )
        for one in settings
        if one not in of_decoding
    ]
    root = compose(dump_config(config), "config.yaml")
    assert root is not None
    return _changed(root, "config.yaml", of_decoding, problems).decoding


def dump_config(config: Config) -> str:
    """Return the configuration as YAML with every default written out, in the schema's order."""
    return yaml.dump(
        as_plain(config),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
    )


def as_plain(value: object) -> Any:
    """Return a configuration as dicts, lists and scalars, for YAML or JSON."""
    if dataclasses.is_dataclass(value):
        # Inherited fields come before a `kind`, which says what they all are.
        parts = sorted(dataclasses.fields(value), key=lambda part: part.name != "kind")
        return {part.name: as_plain(getattr(value, part.name)) for part in parts}
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [as_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def data_files(data: DataConfig) -> Iterator[tuple[str, Path]]:
    """Yield the key path of every text file, and the file."""
    for key, text in data.texts().items():
        for side, file in text.files.items():
            yield f"data.{key}.{side}", file


def check_data_files(data: DataConfig, written: Mapping[str, str] | None = None) -> None:
    """Make sure that every text file is there.

    Args:
        data: which names them.
        written: where each of their keys is written, as `places_of_keys` says; without it,
            messages name the keys alone.

    Raises:
        ConfigError: some are not; all of those.
    """
    missing = []
    for key, path in data_files(data):
        if not path.is_file():
            where = f"{written[key]}: {key}" if written and key in written else key
            other = "must be a regular file" if path.exists() else "no such file"
            what = "is a folder" if path.is_dir() else other
            missing.append(Problem(where, what, str(path), _remedy_for_missing(path)))
    if missing:
        raise ConfigError(missing)


def places_of_keys(path: Path, settings: Sequence[str] = ()) -> dict[str, str]:
    """Return where each key of a configuration that can be loaded is written: a file and a line."""
    root = _tree(path)
    for override in settings:
        root = _overridden(root, override)
    return dict(_places(root, ""))


def _places(node: yaml.Node, path: str) -> Iterator[tuple[str, str]]:
    """Yield the key path and the place of every value of a tree."""
    yield path, place(str(node.start_mark.name), node.start_mark.line)
    if isinstance(node, yaml.SequenceNode):
        parts = [(str(index), item) for index, item in enumerate(node.value)]
    elif isinstance(node, yaml.MappingNode):
        parts = [(key.value, value) for key, value in node.value]
    else:
        return
    for key, value in parts:
        yield from _places(value, f"{path}.{key}" if path else key)


def _remedy_for_missing(path: Path) -> str:
    """Return how to get a file that a shipped configuration names, or any other."""
    corpus = path.parent.name
    for folder in path.parents:
        script = folder / "scripts" / f"get_{corpus}.py"
        if script.is_file():
            return f"run python scripts/{script.name}, correct the path, or set data.root"
    return "correct the path, or set data.root"


class _Dumper(yaml.SafeDumper):
    """Mappings in block style, lists of scalars on one line, no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_list(dumper: _Dumper, items: list[object]) -> yaml.Node:
    inline = not any(isinstance(item, dict | list) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=inline)


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    style = '"' if LINE_ENDS & set(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)


def _tree(path: Path) -> yaml.Node:
    """Return the syntax tree of a file.

    Raises:
        ConfigError: it is not there, is no YAML, or there is nothing in it.
    """
    text = _read(path)
    is_config = path.suffix in _ENDINGS or _TOP_KEY.search(text) is not None
    try:
        root = compose(text, str(path))
    except ConfigError:
        if is_config:
            raise
        problem = Problem(str(path), "is plain text, not a config", remedy=_NEW_CONFIG)
        raise ConfigError([problem]) from None
    if root is None:
        raise ConfigError([Problem(str(path), "is empty", remedy=_NEW_CONFIG)])
    if isinstance(root, yaml.ScalarNode):
        raise ConfigError([Problem(str(path), "is plain text, not a config", remedy=_NEW_CONFIG)])
    return with_current_names(root, str(path))


def _read(path: Path) -> str:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A pipe or a device may never end.
            remedy = "write it to a file first"
            raise ConfigError([Problem(str(path), "must be a regular file", remedy=remedy)])
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        remedy = "name a config, or begin one with `tformer config new`"
        raise ConfigError([Problem(str(path), "no such file", remedy=remedy)]) from None
    except IsADirectoryError:
        own = path / "config.yaml"
        remedy = f"name {own}" if own.is_file() else "name a YAML file in it"
        raise ConfigError([Problem(str(path), "is a folder", remedy=remedy)]) from None
    except OSError as error:
        raise ConfigError([Problem(str(path), "cannot be read", error.strerror)]) from None
    other = None if path.suffix in _ENDINGS else _NEW_CONFIG
    if len(data) > MAX_BYTES:
        what = f"must be at most {MAX_BYTES >> 20} MiB large"
        raise ConfigError([Problem(str(path), what, remedy=other)])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got = f"byte 0x{data[error.start]:02X}"
        raise ConfigError([Problem(f"{path}:{line}", "is not UTF-8", got, other)]) from None


def _search_setting(override: str, decoding: DecodingConfig) -> str | None:
    """Return how to write an override that lacks the name of its section, if it does."""
    key, _, value = override.partition("=")
    key = current_path(f"decoding.{our_key(key)}").removeprefix("decoding.")
    if key not in {part.name for part in dataclasses.fields(decoding)}:
        return None
    return f"write decoding.{key}={value}"


def _changed(
    root: yaml.Node, file: str, overrides: Sequence[str], problems: Sequence[Problem]
) -> Config:
    """Return the configuration that a tree describes with some keys changed.

    Raises:
        ConfigError: all that is wrong with it, and with them; and the problems known already.
    """
    found = list(problems)
    for override in overrides:
        try:
            root = _overridden(root, override)
        except ConfigError as error:
            found.extend(error.problems)
    try:
        config = parse_config(root, file)
    except ConfigError as error:
        raise ConfigError([*error.problems, *found]) from None
    if found:
        raise ConfigError(found)
    return config


def _overridden(root: yaml.Node, override: str) -> yaml.Node:
    """Return the tree with one key changed.

    Raises:
        ConfigError: the override is not KEY=VALUE, or its key is not there.
    """
    old_key, equals, text = override.partition("=")
    key = current_path(old_key)
    name = f"{OVERRIDE}{key}"
    if not equals or not all(key.split(".")):
        raise ConfigError([Problem(name, "must be KEY=VALUE", override)])
    value = compose(text or "null", name)
    if value is None:
        raise ConfigError([Problem(name, "has no value", text)])
    if key != old_key:
        warn_of_names(f"{OVERRIDE}{old_key}", [f"{key} for {old_key.rpartition('.')[2]}"])
    return with_current_names(_with_value(root, key.split("."), value), name)


def _with_value(node: yaml.Node | None, keys: Sequence[str], value: yaml.Node) -> yaml.Node:
    """Return `node` with another value at the end of a key path, making mappings on the way.

    Nodes are copied, not changed: an alias may share them with another key.
    """
    if not keys:
        return value
    key, *rest = keys
    mark = value.start_mark
    if isinstance(node, yaml.SequenceNode):
        items = list(node.value)
        if not key.isdecimal() or int(key) >= len(items):
            what = f"{key} is no item of a list of {len(items)}; they are numbered from 0"
            raise ConfigError([Problem(mark.name, what)])
        items[int(key)] = _with_value(items[int(key)], rest, value)
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark)
    is_mapping = isinstance(node, yaml.MappingNode)
    entries = list(node.value) if node is not None and is_mapping else []
    index = next((i for i, (name, _) in enumerate(entries) if name.value == key), len(entries))
    written, old = entries[index] if index < len(entries) else (None, None)
    if written is None or not rest:
        written = yaml.ScalarNode("tag:yaml.org,2002:str", key, mark)
    entries[index : index + 1] = [(written, _with_value(old, rest, value))]
    tag = node.tag if node is not None and is_mapping else "tag:yaml.org,2002:map"
    return yaml.MappingNode(tag, entries, mark)


def _with_absolute_paths(config: Config, folder: Path) -> Config:
    data, training = _absolute_data(config.data, folder), config.training
    if training.init_from is not None:
        before = _absolute(folder, training.init_from)
        training = dataclasses.replace(training, init_from=before)
    return dataclasses.replace(config, data=data, training=training)


def _absolute_data(data: DataConfig, folder: Path) -> DataConfig:
    root = None if data.root is None else _absolute(folder, data.root)
    base = folder if root is None else root

    def resolved(text: _Text) -> _Text:
        changes: dict[str, Any] = {side: _absolute(base, file) for side, file in text.files.items()}
        return dataclasses.replace(text, **changes)

    return dataclasses.replace(
        data,
        root=root,
        train=tuple(resolved(text) for text in data.train),
        valid=resolved(data.valid),
        test={name: resolved(text) for name, text in data.test.items()},
    )


def _absolute(folder: Path, path: Path) -> Path:
    """Return the path without `..`, links left as they are: their names mean something."""
    return Path(os.path.abspath(folder / path))
