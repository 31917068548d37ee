"""`tformer plot`: what it writes, what it prints, and when it refuses."""

import json
import os
import shutil
import subprocess
import sys

import pytest

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_plot_writes_a_picture_and_says_where(toy_run, tformer, folder):
    result = tformer("plot", toy_run)
    assert (result.exit_code, result.stdout) == (0, "curves.png: written\n")
    assert (folder / "curves.png").read_bytes().startswith(PNG)


def test_a_home_that_cannot_be_written_is_no_matter(toy_run):
    environment = {name: value for name, value in os.environ.items() if name != "MPLCONFIGDIR"}
    words = [sys.executable, "-m", "tformer_cli", "plot", str(toy_run)]
    done = subprocess.run(
        words, env={**environment, "HOME": "/dev/null"}, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("curves.png: written\n", "")


def test_plot_takes_the_newest_run_where_none_is_named(toy_run, tformer, folder):
    shutil.copytree(toy_run, folder / "runs" / "toy")
    printed = json.loads(tformer("plot", "--json").stdout)
    assert [run["run"] for run in printed["runs"]] == ["runs/toy"]


def test_json_is_the_points_of_each_run(toy_run, tformer, folder):
    other = shutil.copytree(toy_run, folder / "other")
    lines = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(lines[:2]))
    printed = json.loads(tformer("plot", toy_run, other, "--json", "--by", "hours").stdout)
    assert printed["by"] == "hours"
    assert [run["run"] for run in printed["runs"]] == [str(toy_run), str(other)]
    whole, beginning = (run["curves"] for run in printed["runs"])
    first, second = map(json.loads, lines[:2])
    assert beginning["grad_norm"] == [
        [first["seconds"] / 3600, first["grad_norm"]],
        [(first["seconds"] + second["seconds"]) / 3600, second["grad_norm"]],
    ]
    assert whole["grad_norm"][:2] == beginning["grad_norm"]
    assert "valid_bleu" in whole
    assert "valid_bleu" not in beginning


def test_json_alone_draws_nothing_and_needs_no_matplotlib(toy_run, tformer, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert tformer("plot", toy_run, "--json").exit_code == 0
    assert list(folder.iterdir()) == []


def test_json_with_output_draws_too(toy_run, tformer, folder):
    result = tformer("plot", toy_run, "--json", "-o", "deep/toy.PNG")
    assert json.loads(result.stdout)["by"] == "step"
    assert (folder / "deep" / "toy.PNG").read_bytes().startswith(PNG)


@pytest.mark.parametrize("name", ["curves.jpg", "curves"])
def test_plot_refuses_a_format_that_it_does_not_write(toy_run, tformer, folder, name):
    result = tformer("plot", toy_run, "--output", name)
    assert result.exit_code == 2
    assert result.stderr == f"--output: must end in .png, .svg or .pdf ({name})\n"
    assert list(folder.iterdir()) == []


def test_plot_refuses_a_run_that_is_not_there(tformer):
    result = tformer("plot", "no/run")
    assert result.exit_code == 2
    assert result.stderr == (
        "no/run: no such run folder; name the folder of a run, such as runs/demo\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["plot", "texts"],
        ["trim", "texts", "small", "texts/a.en", "texts/a.de"],
        ["extend", "texts", "more", "texts/a.en", "texts/a.de"],
    ],
)
def test_a_folder_that_is_no_run_is_named_as_such(words, tformer, folder):
    (folder / "texts").mkdir()
    for name in ("a.en", "a.de"):
        (folder / "texts" / name).write_text("a\n")
    result = tformer(*words)
    message = "texts: is not a run folder: it has no config.yaml; name a run folder\n"
    assert (result.exit_code, result.stderr) == (2, message)
