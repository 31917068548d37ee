"""`tformer vocab`: what it prints, where it writes, and when it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from killing import cut_short
from typer.testing import CliRunner

from tformer_cli.cli.app import app
from tformer_cli.config.load import load_config
from tformer_cli.errors import ConfigError, TrainingError, UsageError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.text.tokenizer import load_tokenizers
from tformer_cli.training.resume import locked
from tformer_cli.training.setup import run_tokenizers

CONFIG = """\
data:
  source_language: en
  target_language: de
  train: [{source: train.en, target: train.de}]
  valid: {source: valid.en, target: valid.de}
tokenizer: {kind: char}
"""
TABLE = """\
                      train en  train de  valid en  valid de
vocabulary size             22        22        22        22
sentences                    2         2         1         1
  sampled                    2         2         1         1
tokens                       6         4         2         3
characters covered    100.000%  100.000%  100.000%   66.667%
unknown tokens          0.000%    0.000%    0.000%   33.333%
byte tokens             0.000%    0.000%    0.000%    0.000%
tokens per sentence        3.0       2.0       2.0       3.0
  median                     2         1         2         3
  99th percentile            4         3         2         3
  longest                    4         3         2         3
characters per token      1.00      1.00      1.00      1.00
vocabulary: runs/tiny/tokenizer
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "tiny.yaml": CONFIG,
        "train.en": "ab\nabba\n",
        "train.de": "xyz\nw\n",
        "valid.en": "aa\n",
        "valid.de": "x?y\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["vocab", "tiny.yaml", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_vocab_of_a_text_alone_has_one_side(folder: Path) -> None:
    (folder / "tiny.yaml").write_text(
        "data:\n  source_language: en\n  train: [{text: train.en}]\n  valid: {text: valid.en}\n"
        "tokenizer: {kind: char}\nmodel: {kind: masked_encoder}\n"
        "training: {selection_metric: loss}\n"
    )
    heading, size, *_ = output().split("\n")
    assert heading.split() == ["train", "en", "valid", "en"]
    assert size.split() == ["vocabulary", "size", "18", "18"]


def test_vocab_prints_a_table() -> None:
    assert output() == TABLE


def test_vocab_of_a_run_only_shows_it_even_of_a_trained_model(folder: Path) -> None:
    output("--set", "tokenizer.min_frequency=2")
    run = RunDirectory(Path("runs/tiny"))
    run.point("last", run.checkpoint(7))
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    built = output("--run", "another", "--set", "tokenizer.min_frequency=2")
    result = CliRunner().invoke(app, ["vocab", "runs/tiny"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == built.replace("another/", "runs/tiny/")
    assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("option", [["--run", "x"], ["--set", "seed=2"], ["--force"]])
def test_vocab_of_a_run_refuses_what_would_build(option: list[str]) -> None:
    output()
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, ["vocab", "runs/tiny", *option], catch_exceptions=False)
    assert str(caught.value) == (
        f"{option[0]}: has no effect with a run folder; leave it out, or name a YAML file"
    )


def test_vocab_of_a_folder_that_is_no_run_is_refused(folder: Path) -> None:
    (folder / "texts").mkdir()
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, ["vocab", "texts"], catch_exceptions=False)
    assert str(caught.value).startswith("texts: is not a run folder: it has no config.yaml")


def test_vocab_says_how_to_train_with_it() -> None:
    words = ["vocab", "tiny.yaml", "--run", "a b", "--set", "seed=2"]
    result = CliRunner().invoke(app, words)
    assert result.stderr == "next: tformer train tiny.yaml --run 'a b' --set seed=2\n"
    result = CliRunner().invoke(app, ["vocab", "tiny.yaml", "--json"])
    assert (result.exit_code, result.stderr) == (0, "")


def test_vocab_writes_the_tokenizer_of_the_run(folder: Path) -> None:
    output("--run", "elsewhere/run")
    tokenizers = load_tokenizers(folder / "elsewhere" / "run" / "tokenizer")
    assert tokenizers.source.decode(tokenizers.source.encode("abwx")) == "abwx"


def test_a_training_takes_the_vocabulary_of_the_same_text_and_no_other(folder: Path) -> None:
    output()
    run, config = RunDirectory(Path("runs/tiny")), load_config(Path("tiny.yaml"))

    def is_built(**changes: int) -> bool:
        said: list[str] = []
        run_tokenizers(replace(config, **changes), run, said.append, stores=folder / "stores")
        return said == ["building the vocabulary"]

    assert not is_built()
    assert is_built(seed=2)
    (folder / "train.en").write_text("ab\nabcdba\n")
    assert is_built()
    (folder / "train.en").write_text("ab\nabba\n")
    assert not is_built()
    run.origin_file.write_text("{")
    assert is_built()


def test_vocab_leaves_the_config_that_it_was_built_from(folder: Path) -> None:
    output("--set", "tokenizer.min_frequency=3")
    built_from = load_config(folder / "tiny.yaml", ["tokenizer.min_frequency=3"])
    assert load_config(folder / "runs" / "tiny" / "config.yaml") == built_from


def test_vocab_prints_the_same_numbers_as_json() -> None:
    printed = json.loads(output("--json"))
    assert printed["tokenizer"] == "runs/tiny/tokenizer"
    assert set(printed) == {"tokenizer", "train", "valid"}
    assert printed["train"]["source"]["num_tokens"] == 6
    assert printed["valid"]["target"] == {
        "vocabulary_size": 22,
        "num_sentences": 1,
        "num_sampled": 1,
        "num_tokens": 3,
        "coverage": 2 / 3,
        "unknown_rate": 1 / 3,
        "byte_rate": 0.0,
        "lengths": {"mean": 3.0, "median": 3, "p99": 3, "longest": 3},
        "characters_per_token": 1.0,
    }


def test_vocab_follows_set() -> None:
    printed = json.loads(output("--json", "--set", "tokenizer.min_frequency=3"))
    assert printed["train"]["source"]["vocabulary_size"] == 16 + 2


def test_vocab_keeps_away_from_a_training_and_from_what_is_not_ours(folder: Path) -> None:
    run = RunDirectory(folder / "runs" / "tiny")
    run.path.mkdir(parents=True)
    with locked(run), pytest.raises(TrainingError) as caught:
        output()
    assert "runs/tiny: another process is training here" in str(caught.value)
    (folder / "eval").mkdir()
    with pytest.raises(UsageError) as refused:
        output("--run", ".")
    assert ".: is not empty and not a run folder (" in str(refused.value)
    assert not run.tokenizer.exists()


def test_vocab_names_all_missing_texts_before_anything_else(folder: Path) -> None:
    for name in ("train.en", "valid.de"):
        (folder / name).unlink()
    with pytest.raises(ConfigError) as caught:
        output()
    assert [problem.where for problem in caught.value.problems] == [
        "tiny.yaml:4: data.train.0.source",
        "tiny.yaml:5: data.valid.target",
    ]
    assert not (folder / "runs").exists()


def test_vocab_of_a_run_that_goes_on_from_another_is_that_of_the_other(folder: Path) -> None:
    output("--run", "first")
    (folder / "train.en").write_text("ab\nabcdba\n")
    output("--set", "training.init_from=first")
    first, second = (
        load_tokenizers(folder / name / "tokenizer").fingerprint for name in ("first", "runs/tiny")
    )
    assert first == second


def test_vocab_replaces_only_when_forced(folder: Path) -> None:
    output()
    with pytest.raises(UsageError) as caught:
        output()
    assert str(caught.value) == (
        "runs/tiny/tokenizer: already exists; "
        "add `overwrite=True` to replace it, or name another folder with `run`"
    )
    output("--force", "--set", "tokenizer.min_frequency=3")
    assert load_tokenizers(folder / "runs" / "tiny" / "tokenizer").source.size == 16 + 2


def test_vocab_that_was_killed_at_any_call_is_built_by_the_same_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config of a run comes last, and says that the vocabulary is whole."""
    output("--run", "unbroken")
    run, unbroken = RunDirectory(folder / "runs" / "tiny"), RunDirectory(folder / "unbroken")
    num_calls = 0
    while cut_short(output, num_calls, monkeypatch):
        if not run.config_file.exists():
            output()
        assert run.config_file.read_text() == unbroken.config_file.read_text()
        for run_directory in (run, unbroken):
            assert {file.name for file in run_directory.tokenizer.iterdir()} == {
                "origin.json",
                "shared.json",
                "tokenizer.json",
            }
        shutil.rmtree(folder / "runs")
        num_calls += 1
    assert num_calls > 20


def test_vocab_never_replaces_that_of_a_trained_model(folder: Path) -> None:
    output()
    run = RunDirectory(folder / "runs" / "tiny")
    run.point("last", run.checkpoint(7))
    with pytest.raises(UsageError) as caught:
        output("--force")
    assert str(caught.value) == (
        "runs/tiny/tokenizer: belongs to the model that this run has trained; "
        "name another folder with `run`"
    )
