"""`tformer config`: what it prints, and which errors it lets through."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tformer_cli.cli.config import app
from tformer_cli.config.load import as_plain, dump_config, load_config
from tformer_cli.errors import ConfigError, DataError, TformerError, UsageError

ROOT = Path(__file__).parent.parent.parent
CONFIG = """\
data:
  train: [{source: train.en, target: train.de}]
  valid: {source: valid.en, target: valid.de}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a configuration and its texts."""
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(CONFIG, encoding="utf-8")
    for name, num_lines in [("train", 40), ("valid", 3)]:
        for language in ("en", "de"):
            lines = "".join(f"{language} {line}\n" for line in range(num_lines))
            Path(f"{name}.{language}").write_text(lines, encoding="utf-8")
    return tmp_path


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None:
        raise result.exception
    return result.output


def complaint(error: type[TformerError], *arguments: str) -> str:
    with pytest.raises(error) as raised:
        printed(*arguments)
    assert raised.value.exit_code == 2
    return str(raised.value)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_config_checks(path: Path, request: pytest.FixtureRequest) -> None:
    root = load_config(path).data.root
    if root.is_dir():
        assert printed("check", str(path)) == f"{path}: ok\n"
        return
    root = request.getfixturevalue("corpora") / root.name
    if not root.is_dir():
        pytest.skip(f"there is no corpus {root.name} here")
    assert printed("check", str(path), "--set", f"data.root={root}") == f"{path}: ok\n"


def test_check_says_ok(folder: Path) -> None:
    assert printed("check", "x.yaml") == "x.yaml: ok\n"
    assert printed("check", "x.yaml", "--set", "seed=3", "--set", "model.dim=64") == "x.yaml: ok\n"


def test_check_tells_every_mistake(folder: Path) -> None:
    Path("x.yaml").write_text(f"{CONFIG}seed: x\nmodel: {{num_heads: 3}}\n", encoding="utf-8")
    assert complaint(ConfigError, "check", "x.yaml", "--set", "decoding.size=0").split("\n") == [
        "x.yaml:4: seed: must be a whole number; got x",
        "x.yaml:5: model.num_heads: must divide dim (256); got 3",
        "--set decoding.size: must be at least 1; got 0",
    ]


def test_check_tells_which_texts_are_missing(folder: Path) -> None:
    Path("valid.en").unlink()
    Path("train.de").unlink()
    remedy = "mend the path, or set data.root"
    assert complaint(ConfigError, "check", "x.yaml").split("\n") == [
        f"data.train.0.target: no such file; got {folder}/train.de; {remedy}",
        f"data.valid.source: no such file; got {folder}/valid.en; {remedy}",
    ]


def test_show_prints_the_resolved_config(folder: Path) -> None:
    config = load_config(Path("x.yaml"), ["training.max_steps=5000"])
    arguments = ("show", "x.yaml", "--set", "training.max_steps=5000")
    assert printed(*arguments) == dump_config(config)
    assert json.loads(printed(*arguments, "--json")) == as_plain(config)
    assert "max_steps: 5000" in dump_config(config)


def test_show_needs_no_texts(folder: Path) -> None:
    Path("valid.en").unlink()
    assert f"source: {folder}/valid.en\n" in printed("show", "x.yaml")


def test_new_splits_the_text_and_its_config_checks(folder: Path) -> None:
    assert printed("new", "train.en", "train.de", "--output", "my model.yaml").split("\n") == [
        "my model.yaml: written",
        "train: 36 pairs in my model.data/train.source and my model.data/train.target",
        "valid: 2 pairs in my model.data/valid.source and my model.data/valid.target",
        "test: 2 pairs in my model.data/test.source and my model.data/test.target",
        "next: tformer train 'my model.yaml'",
        "",
    ]
    assert printed("check", "my model.yaml") == "my model.yaml: ok\n"


def test_new_takes_a_validation_text_and_languages(folder: Path) -> None:
    arguments = ["--valid-source", "valid.en", "--valid-target", "valid.de"]
    arguments += ["--source-language", "en", "--target-language", "de"]
    assert printed("new", "train.en", "train.de", *arguments).split("\n") == [
        "config.yaml: written",
        "train: 40 pairs in train.en and train.de",
        "valid: 3 pairs in valid.en and valid.de",
        "next: tformer train config.yaml",
        "",
    ]
    data = load_config(Path("config.yaml")).data
    assert (data.source_language, data.target_language) == ("en", "de")
    assert data.valid.source == folder / "valid.en"


def test_new_replaces_files_only_when_forced(folder: Path) -> None:
    arguments = ("new", "train.en", "train.de", "--output", "x.yaml")
    message = "x.yaml: is there already; choose another --output, or add --force"
    assert complaint(UsageError, *arguments) == message
    assert printed(*arguments, "--force").startswith("x.yaml: written\n")


def test_new_refuses_half_a_validation_text(folder: Path) -> None:
    together = "--valid-source and --valid-target go together"
    assert complaint(UsageError, "new", "train.en", "train.de", "--valid-source", "valid.en") == (
        f"--valid-target: {together}; add --valid-target"
    )
    assert complaint(UsageError, "new", "train.en", "train.de", "--valid-target", "valid.de") == (
        f"--valid-source: {together}; add --valid-source"
    )


def test_new_refuses_what_can_be_read_only_once(folder: Path) -> None:
    os.mkfifo("pipe")
    assert complaint(UsageError, "new", "train.en", "pipe") == (
        "TARGET: must be read more than once, and a pipe cannot be; write it to a file first"
    )


def test_new_lets_errors_of_the_texts_through(folder: Path) -> None:
    assert (
        complaint(DataError, "new", "train.en", "none.de")
        == "none.de: no such file; name a text that is there"
    )
    assert complaint(DataError, "new", "train.en", "valid.de").startswith("train.en:4: ")
    assert sorted(path.name for path in folder.iterdir() if "train" not in path.name) == [
        "valid.de",
        "valid.en",
        "x.yaml",
    ]


@pytest.mark.parametrize("command", ["check", "show", "new"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: tformer config {command} " in " ".join(printed(command, "--help").split())
