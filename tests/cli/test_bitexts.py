"""Files of pairs on their way through training, evaluation and reports."""

import json
import re
import shutil
from pathlib import Path

import pytest
from bitexts import WRITERS, Pairs
from toy import CONFIG, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.corpus.reader import read_texts

# A step takes long enough.
SHORT = re.sub(r"(max_steps|validate_every|warmup_steps): \d+", r"\1: 1", CONFIG)
FILES = {"train": "a.tsv.gz", "valid": "a.jsonl", "test": "a.zip"}


@pytest.fixture
def configs(tmp_path: Path) -> tuple[Path, Path]:
    """The same text in plain files and in other formats."""
    plain = write_toy(tmp_path / "plain", config=SHORT)
    data = load_config(plain).data
    texts = {"train": data.train[0], "valid": data.valid, "test": data.test["toy"]}
    folder = tmp_path / "others"
    folder.mkdir()
    config = SHORT
    for name, text in texts.items():
        pairs: Pairs = list(read_texts([text]))
        file = f"{name}-{FILES[name]}"
        (folder / file).write_bytes(WRITERS[FILES[name]](pairs))
        languages = "" if name == "train" else ", languages: [en, de]"
        config = config.replace(
            f"{{source: {name}.src, target: {name}.tgt}}", f"{{pairs: {file}{languages}}}"
        )
    (folder / "toy.yaml").write_text(config)
    return plain, folder / "toy.yaml"


def test_a_training_does_not_depend_on_the_format(tformer, configs, tmp_path) -> None:
    evaluations = []
    for number, config in enumerate(configs):
        run = tmp_path / f"run{number}"
        result = tformer("train", config, "--run", run)
        assert result.exit_code == 0, result.stderr
        result = tformer("eval", run, "--json")
        assert result.exit_code == 0, result.stderr
        evaluations.append(json.loads(result.stdout)["toy"])
        hypotheses = (run / "eval" / "toy.hyp.txt").read_text()
        evaluations[-1] |= {"hypotheses": hypotheses, "sacrebleu": None}
        assert tformer("eval", run, "--split", "valid").exit_code == 0
    first, second = evaluations
    # The fingerprint is also of the file.
    assert first.pop("fingerprint") != second.pop("fingerprint")
    assert first == second


@pytest.mark.parametrize(
    "words",
    [
        ["config", "check"],
        ["train", "--dry-run", "--run", "dry"],
        ["vocab", "--run", "vocabulary"],
    ],
)
def test_commands_before_a_training_take_files_of_pairs(
    tformer, configs, tmp_path, monkeypatch, words
) -> None:
    monkeypatch.chdir(tmp_path)
    result = tformer(*words, configs[1])
    assert result.exit_code == 0, result.stderr


def test_commands_on_a_run_take_files_of_pairs(tformer, configs, tmp_path) -> None:
    run, page = tmp_path / "run", tmp_path / "page.html"
    assert tformer("train", configs[1], "--run", run).exit_code == 0
    other = shutil.copytree(run, tmp_path / "other")
    for words in (
        ["report", run, "--output", page],
        ["compare", run, other],
        ["tune", run, "--beam", 1],
    ):
        result = tformer(*words)
        assert result.exit_code == 0, result.stderr


def test_skipped_records_are_one_warning(tformer, configs, tmp_path) -> None:
    folder = configs[1].parent
    file = folder / "bad.tsv"
    file.write_text("ab\tBA\nno target\n" * 9, encoding="utf-8")
    texts = f"data.train=[{{pairs: {file}, on_error: skip}}]"
    with pytest.warns(UserWarning, match=r"bad.tsv: records without a pair were skipped \(9\)"):
        result = tformer("train", configs[1], "--run", tmp_path / "run", "--set", texts)
    assert "training text: 9 pairs" in result.stderr
    stopping = texts.replace("on_error: skip", "on_error: stop")
    result = tformer("train", configs[1], "--run", tmp_path / "other", "--set", stopping)
    assert result.stderr == f"{file}:2: has no column 2 (1 in all)\n"
    assert result.exit_code == 2
