"""One JSON object on stdout is UTF-8, whatever the locale and the names of files have."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tformer_cli.cli.app import app


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    """The two sides of a text, whose names are no UTF-8."""
    files = [os.fsencode(tmp_path) + name for name in (b"\xff.en", b"\xff.de")]
    for file in files:
        Path(os.fsdecode(file)).write_text("▁ a dog runs .\n" * 3, encoding="utf-8")
    return list(map(os.fsdecode, files))


@pytest.mark.parametrize("charset", ["utf-8", "latin-1"])
@pytest.mark.parametrize("command", ["clean", "extract-phrases"])
def test_an_object_is_utf8(pairs, tmp_path, command, charset):
    output = os.fsdecode(os.fsencode(tmp_path / "日本") + b"\xff")
    words = [command, *pairs, "--output", output, "--json"]
    result = CliRunner(charset=charset).invoke(app, words)
    assert result.exit_code == 0
    content = json.loads(result.stdout_bytes.decode("utf-8"))
    text = content["text" if command == "clean" else "train"]
    assert os.fsencode(text["source"]).startswith(os.fsencode(output))
    assert Path(text["source"]).exists()


def test_examples_need_no_locale(pairs, tmp_path):
    words = ["clean", *pairs, "-o", tmp_path / "x", "--set", "data.filters.max_length=1", "--json"]
    result = CliRunner(charset="latin-1").invoke(app, list(map(str, words)))
    content = json.loads(result.stdout_bytes.decode("utf-8"))
    assert content["examples"]["too_long"][0]["source"] == "▁ a dog runs ."
