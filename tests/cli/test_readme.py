"""The README's commands, run as they stand on a toy corpus."""

import re
import shlex
from pathlib import Path

import pytest
from toy import write_toy

from tformer_cli.cli.app import COMMANDS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHORTER = (
    "--set training.max_steps=4 --set training.validate_every=2 --set training.save_every=2 "
    "--set training.schedule.warmup_steps=1"
)


def commands(heading: str) -> list[str]:
    """The shell commands of the first code block with a comment on each, under a heading."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^    (\S.*?)\s+# .+$", section, re.MULTILINE)
    assert found, f"no commands under {heading}"
    return found


def test_two_text_files_become_a_scored_model(tformer, tmp_path, monkeypatch):
    data = write_toy(tmp_path / "data", pairs=400).parent
    monkeypatch.chdir(tmp_path)
    for suffix, name in (("src", "corpus.en"), ("tgt", "corpus.de")):
        (tmp_path / name).write_bytes((data / f"train.{suffix}").read_bytes())
    lines = commands("Your own text")
    programs = [line.split()[0:2] for line in lines]
    assert programs == [
        ["tformer", "config"],
        ["tformer", "train"],
        ["tformer", "eval"],
        ["tformer", "translate"],
    ]
    outputs = []
    for line in lines:
        words = shlex.split(f"{line} {SHORTER}" if " train " in line else line)
        result = tformer(*words[1:])
        assert result.exit_code == 0, result.stderr
        outputs.append(result.stdout)
    assert "BLEU = " in outputs[2]
    assert outputs[3].count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_stands_in_the_table(name):
    table = README.split("## Commands\n")[1].split("\n## ")[0]
    assert re.search(rf"^\|.*`tformer {name}\b", table, re.MULTILINE)


@pytest.mark.parametrize("name", ["data/demo", "CONTRIBUTING.md"])
def test_what_the_readme_points_to_is_there(name):
    assert f"({name}" in README
    assert (Path(__file__).parents[2] / name).exists()
