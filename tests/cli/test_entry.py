"""What is said of wrong options and keys: no word of the libraries that find the fault."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tformer_cli.cli.app import app
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.errors import ConfigError

INTERNALS = (
    "Input should be",
    "Value error",
    "unable to parse",
    "while scanning",
    "while parsing",
    "could not find expected",
    "cannot start any token",
    "block mapping",
    "mapping values",
    "<class",
    "pydantic",
    "Traceback",
)


def options() -> Iterator[Any]:
    """Each option of each command that takes a value."""
    group = typer.main.get_command(app)
    commands = [(name, command) for name, command in group.commands.items() if name != "config"]  # type: ignore[attr-defined]
    config = group.commands["config"].commands  # type: ignore[attr-defined]
    commands += [(f"config {name}", command) for name, command in config.items()]
    for name, command in commands:
        for option in command.params:
            if option.opts[0].startswith("--") and not option.is_flag:
                yield pytest.param(name, option.opts[0], id=f"{name} {option.opts[0]}")


@pytest.mark.parametrize(("command", "option"), list(options()))
def test_no_option_speaks_of_the_libraries(tformer, tmp_path, monkeypatch, command, option):
    monkeypatch.chdir(tmp_path)
    for value in ("five", "0", "-1", "nan", "1e99", "\tx: [", "AdamW"):
        result = tformer(*command.split(), f"{option}={value}", *(["none"] * 2))
        assert result.exit_code == 2
        assert not [word for word in INTERNALS if word in result.stderr]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("translate --beam five", "--beam: must be a whole number (five)"),
        ("translate --beam 0", "--beam: must be at least 1 (0)"),
        ("translate --mbr comet", "--mbr: must be one of chrf, bleu (comet)"),
        (
            "export --format gguf x y",
            "--format: must be one of argos, ctranslate2, m2m, marian, marian-npz, "
            "onnx, safetensors, t5 (gguf)",
        ),
        ("eval --length-penalty x", "--length-penalty: must be a number (x)"),
        ("train x --find-batch --memory-limit -1", "--memory-limit: must be at least 0 (-1)"),
    ],
)
def test_wrong_value_of_an_option(tformer, words, message):
    result = tformer(*words.split())
    assert (result.exit_code, result.stderr) == (2, f"{message}\n")


def keys(cls: Any, path: str = "") -> Iterator[str]:
    """Every key path of the schema, those of all kinds."""
    for name, hint in typing.get_type_hints(cls).items():
        child = f"{path}.{name}" if path else name
        yield child
        for member in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(member):
                yield from keys(member, child)


@pytest.mark.parametrize("value", ["[", "{a", '"', "\t- x: ]", "*x", "a: b: c", "none", "-1", "%"])
def test_no_key_speaks_of_the_libraries(tmp_path: Path, value: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "data:\n  train: [{source: a, target: b}]\n  valid: {source: c, target: d}\n",
        encoding="utf-8",
    )
    for key in set(keys(Config)):
        said = ""
        try:
            load_config(file, [f"{key}={value}"])
        except ConfigError as error:
            said = str(error)
        assert not [word for word in INTERNALS if word in said], said
