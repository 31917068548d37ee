"""Patterns of training files: `*` is any characters of a name, `?` is a single one."""

import dataclasses
import glob
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.text import AnyTrainingText
from tformer_cli.config.yaml_tree import located
from tformer_cli.errors import ConfigError, Problem

_WILDCARD = re.compile(r"\*+|\?")
_Text = TypeVar("_Text", bound=AnyTrainingText)


def with_globs_expanded(
    data: DataConfig, locations: Mapping[str, str]
) -> tuple[DataConfig, dict[str, str]]:
    """Return the data with a training text for each match of a pattern, sorted.

    Wildcards of source and target match the same characters: `*.en` and `*.de` are pairs of the
    same name. A pattern without a match stays, and counts as a missing file.

    Args:
        data: with absolute paths.
        locations: where each key of the config is written.

    Returns:
        The data, and the locations of its keys.

    Raises:
        ConfigError: source and target of a text have other wildcards.
    """
    train: list[AnyTrainingText] = []
    moved = {key: where for key, where in locations.items() if not key.startswith("data.train.")}
    for index, text in enumerate(data.train):
        key = f"data.train.{index}"
        for expanded in _expanded(text, locations.get(key), key):
            new_key = f"data.train.{len(train)}"
            train.append(expanded)
            moved |= {
                f"{new_key}{old.removeprefix(key)}": where
                for old, where in locations.items()
                if old == key or old.startswith(f"{key}.")
            }
    return dataclasses.replace(data, train=tuple(train)), moved


def _expanded(text: _Text, location: str | None, key: str) -> list[_Text]:
    files = text.files
    wildcards = {tuple(_WILDCARD.findall(str(file))) for file in files.values()}
    if wildcards == {()} or all(file.exists() for file in files.values()):
        return [text]
    if len(wildcards) > 1:
        what = "has other wildcards in source than in target"
        got = ", ".join(file.name for file in files.values())
        raise ConfigError(
            [Problem(located(key, location), what, got, "write the same ones in the same order")]
        )
    # A file without its counterpart is reported as missing later.
    matches = sorted(set().union(*map(_matches, files.values())))
    expanded = []
    for match in matches:
        paths: dict[str, Any] = {side: _filled(file, match) for side, file in files.items()}
        expanded.append(dataclasses.replace(text, **paths))
    return expanded or [text]


def _matches(pattern: Path) -> set[tuple[str, ...]]:
    """Return what the wildcards stand for in each file that a pattern matches."""
    literals = map(re.escape, _WILDCARD.split(str(pattern)))
    groups = ["([^/])" if mark == "?" else "([^/]*)" for mark in _WILDCARD.findall(str(pattern))]
    regex = "".join(part for pair in zip(literals, [*groups, ""], strict=True) for part in pair)
    # Brackets are no wildcards here.
    names = glob.iglob(str(pattern).replace("[", "[[]"))
    matches = (re.fullmatch(regex, name) for name in names if os.path.isfile(name))
    return {match.groups() for match in matches if match is not None}


def _filled(pattern: Path, match: tuple[str, ...]) -> Path:
    """Return a pattern with text instead of its wildcards."""
    parts = iter(match)
    return Path(_WILDCARD.sub(lambda _: next(parts), str(pattern)))
