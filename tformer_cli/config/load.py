"""Reading a configuration from its file and from overrides, and writing it in full."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tformer_cli.config.globs import with_globs_expanded
from tformer_cli.config.parse import SYNONYMS, parse_config
from tformer_cli.config.renamed import current_path, warn_of_renamed, with_current_names
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, FilterConfig
from tformer_cli.config.schema.decoding import DecodingConfig
from tformer_cli.config.schema.fields import LEFT_OUT_IF_NULL, MAX_COUNT
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.config.yaml_tree import OVERRIDE, compose, is_null, located, read_tree, with_value
from tformer_cli.errors import ConfigError, Problem, reject_str
from tformer_cli.storage.atomic import write_text

_ROOT = "data.root"
# Line ends that YAML folds to a space unless they are escaped.
_LINE_ENDS = frozenset("\n\x85\u2028\u2029")


def load_config(path: str | os.PathLike[str], settings: Sequence[str] = ()) -> Config:
    """Read a configuration.

    Paths in the file are relative to `data.root`, and that to the folder of the file; paths in an
    override are relative to the current folder. The configuration has absolute paths, a text for
    each match of a pattern, and files of pairs have `languages`.

    Args:
        path: a YAML file.
        settings: overrides: a key path and its value in YAML, such as `training.max_steps=100`. An
            item of a list has its index from 0 (`data.train.0.weight=2`). Another kind
            (`tokenizer.kind=char`) drops the keys of the file that it does not have. A test set of
            the file may have dots in its name (`data.test.wmt.2016.source=test.en`).

    Raises:
        ConfigError: all problems of the file and of the overrides.
        UsageError: `settings` is a text, and no list of them.
    """
    reject_str(settings=settings)
    return _loaded(Path(path), settings)[0]


def load_with_texts(path: Path, settings: Sequence[str]) -> Config:
    """Read a configuration whose text files must exist; missing ones are located by line."""
    config, locations = _loaded(path, settings)
    check_data_files(config.data, locations)
    return config


def changed_decoding(config: Config, settings: Sequence[str]) -> DecodingConfig:
    """Return the search of a configuration with some keys changed.

    Args:
        config: complete, such as a run's.
        settings: `decoding.beam_size=8`; `decoding.kind=sample` drops the keys that sampling does
            not have, and `decoding={kind: sample}` replaces the whole section.
    """
    if not settings:
        return config.decoding
    remedy = functools.partial(_decoding_setting, decoding=config.decoding)
    return _changed(config, settings, "decoding", remedy).decoding


def changed_filters(
    filters: FilterConfig, languages: tuple[str, str], settings: Sequence[str]
) -> FilterConfig:
    """Return filters of a text in some languages with keys changed: `data.filters.max_ratio=2`."""
    source, target = map(Path, languages)
    data = DataConfig(
        source_language=languages[0],
        target_language=languages[1],
        train=(TrainingText(source=source, target=target),),
        valid=ParallelText(source=source, target=target),
        filters=filters,
    )

    def remedy(setting: str) -> str | None:
        key, _, value = setting.partition("=")
        key = key.rpartition(".")[2]
        return f"write data.filters.{key}={value}" if hasattr(filters, key) else None

    # Lengths in words are no matter of a batch.
    config = Config(data=data, training=TrainingConfig(batch_tokens=MAX_COUNT))
    return _changed(config, settings, "data.filters", remedy).data.filters


def _changed(
    config: Config, settings: Sequence[str], section: str, remedy: Callable[[str], str | None]
) -> Config:
    """Return a configuration with some keys of a section changed, and refuse others."""
    of_section = [text for text in settings if text.startswith((f"{section}.", f"{section}="))]
    problems = [
        Problem(
            f"{OVERRIDE}{text.partition('=')[0]}",
            f"only keys of {section} can be changed here",
            remedy=remedy(text),
        )
        for text in settings
        if text not in of_section
    ]
    root = compose(dump_config(config), "config.yaml")
    assert root is not None
    return _parsed(root, "config.yaml", of_section, problems)[0]


def dump_config(config: Config) -> str:
    """Return the configuration as YAML with every default written out, in the schema's order.

    Only the null of a key that is `LEFT_OUT_IF_NULL` is left out.
    """
    return to_yaml(as_plain(config))


def training_item(text: TrainingText) -> dict[str, Any]:
    """Return a text as an item of `data.train`, without the keys that have their default."""
    plain = as_plain(text)
    return {key: plain[key] for key in plain if key != "weight" and plain[key] != []}


def save_decoding(file: Path, decoding: DecodingConfig) -> None:
    """Replace the search in a configuration file; other keys stay as written, without comments."""
    section = compose(to_yaml(as_plain(decoding)), str(file))
    assert section is not None
    root = with_value(read_tree(file), ["decoding"], section)
    text = yaml.serialize(root, Dumper=_TreeDumper, allow_unicode=True, width=float("inf"))
    write_text(file, text)


def to_yaml(plain: object) -> str:
    """Return dicts, lists and scalars as YAML with mappings as blocks."""
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))


def as_plain(value: object) -> Any:
    """Return a configuration as dicts, lists and scalars, for YAML or JSON."""
    if dataclasses.is_dataclass(value):
        # `kind` comes before inherited fields.
        parts = sorted(dataclasses.fields(value), key=lambda part: part.name != "kind")
        items = {part: getattr(value, part.name) for part in parts}
        return {
            part.name: as_plain(item)
            for part, item in items.items()
            if item is not None or part.metadata != LEFT_OUT_IF_NULL
        }
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [as_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def data_files(data: DataConfig) -> Iterator[tuple[str, Path]]:
    """Yield the key path and the path of every text file."""
    for key, text in data.texts().items():
        for side, file in text.files.items():
            yield f"data.{key}.{side}", file


def check_data_files(data: DataConfig, locations: Mapping[str, str] | None = None) -> None:
    """Check that every text file exists; messages say where its key is written, if known."""
    missing = []
    for key, path in data_files(data):
        if not path.is_file():
            where = located(key, locations.get(key) if locations else None)
            other = "must be a regular file" if path.exists() else "no such file"
            what = "is a folder" if path.is_dir() else other
            starts_here = where.startswith(OVERRIDE)
            here = "correct the path, which starts from the current folder, whatever data.root is"
            remedy = here if starts_here else _remedy_for_missing(path)
            missing.append(Problem(where, what, str(path), remedy))
    if missing:
        raise ConfigError(missing)


def _remedy_for_missing(path: Path) -> str:
    """Return how to get a file that a shipped configuration names, or any other."""
    corpus = path.parent.name
    for folder in path.parents:
        script = folder / "scripts" / f"get_{corpus}.py"
        if script.is_file():
            return f"run python scripts/{script.name}, correct the path, or set data.root"
    return "correct the path, or set data.root"


class _TreeDumper(yaml.BaseDumper):
    """Writes a syntax tree; a null without a word would be a quoted text between braces."""

    def serialize_node(self, node: yaml.Node, parent: yaml.Node | None, index: Any) -> None:
        if is_null(node):
            node.value = "null"
        super().serialize_node(node, parent, index)


class _Dumper(yaml.SafeDumper):
    """Block mappings, lists of scalars on one line, no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_list(dumper: _Dumper, items: list[object]) -> yaml.Node:
    inline = not any(isinstance(item, dict | list) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=inline)


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    style = '"' if _LINE_ENDS & set(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)


def _decoding_setting(override: str, decoding: DecodingConfig) -> str | None:
    """Return how to write an override that lacks the name of its section, if it does."""
    key, _, value = override.partition("=")
    path = current_path(f"decoding.{SYNONYMS.get(key, key)}")
    has_key = hasattr(decoding, path.removeprefix("decoding."))
    return f"write {path}={value}" if has_key else None


def _loaded(path: Path, overrides: Sequence[str]) -> tuple[Config, dict[str, str]]:
    """Return the configuration of a file with overrides, and where each key is written."""
    root = with_current_names(read_tree(path), str(path))
    config, locations = _parsed(root, str(path), overrides, [])
    if any(override.startswith(f"{_ROOT}=") for override in overrides):
        _check_root_counts(config.data)
    config = _with_absolute_paths(config, path.parent)
    data, locations = with_globs_expanded(config.data, locations)
    return dataclasses.replace(config, data=data), locations


def _check_root_counts(data: DataConfig) -> None:
    """Raise a ConfigError if no path starts from the root, as in the config of a run."""
    if data.root is not None and all(path.is_absolute() for _, path in data_files(data)):
        what = "has no effect, since all paths of texts are absolute"
        remedy = "change data.train and data.valid"
        raise ConfigError([Problem(f"{OVERRIDE}{_ROOT}", what, str(data.root), remedy)])


def _parsed(
    root: yaml.Node, file: str, overrides: Sequence[str], problems: Sequence[Problem]
) -> tuple[Config, dict[str, str]]:
    """Return the configuration of a tree with overrides, and where each key is written.

    The given problems are raised with its own and those of the overrides.
    """
    others = list(problems)
    for override in overrides:
        try:
            root = _overridden(root, override)
        except ConfigError as error:
            others.extend(error.problems)
    return parse_config(root, file, others)


def _overridden(root: yaml.Node, override: str) -> yaml.Node:
    """Return the tree with one key changed."""
    written_key, equals, text = override.partition("=")
    key = current_path(written_key)
    name = f"{OVERRIDE}{key}"
    if not equals or not all(key.split(".")):
        raise ConfigError([Problem(name, "must be KEY=VALUE", override)])
    value = compose(text or "null", name)
    if value is None:
        raise ConfigError([Problem(name, "has no value", text)])
    if key != written_key:
        old_name = written_key.rpartition(".")[2]
        warn_of_renamed(f"{OVERRIDE}{written_key}", [f"{key} for {old_name}"])
    return with_current_names(with_value(root, key.split("."), value), name)


def _with_absolute_paths(config: Config, folder: Path) -> Config:
    training, data = config.training, config.data
    if training.init_from is not None:
        training = dataclasses.replace(training, init_from=_absolute(folder, training.init_from))
    if data.root is not None:
        data = dataclasses.replace(data, root=_absolute(folder, data.root))
    data = data.with_files(functools.partial(_absolute, data.root or folder)).with_languages()
    return dataclasses.replace(config, data=data, training=training)


def _absolute(folder: Path, path: Path) -> Path:
    """Return the path without `..` and with links, whose names mean something."""
    return Path(os.path.abspath(folder / path))
