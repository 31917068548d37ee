"""`tformer doctor`: what it finds, and that nothing it finds is an error."""

import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest

from tformer_cli import doctor
from tformer_cli.config.load import load_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "CONFIGS", ("demo.yaml",))
    monkeypatch.setattr(doctor, "SECONDS_PER_CONFIG", 0.0)
    monkeypatch.chdir(tmp_path)


def test_a_missing_extra_is_a_line_and_no_error(tformer, monkeypatch):
    installed = importlib.metadata.version

    def version(package: str) -> str:
        if package in ("matplotlib", "ipadic"):
            raise importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    result = tformer("doctor")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert (
        "tformer[plot]: is not installed (matplotlib); pip install 'tformer[plot]' for "
        "tformer plot, and tformer heatmap as a picture" in lines
    )
    assert (
        "tformer[ja]: is not installed (ipadic); pip install 'tformer[ja]' for BLEU of Japanese"
        in lines
    )
    assert re.search(r"^tformer\[plot\] +matplotlib missing$", result.stdout, re.MULTILINE)
    assert f"torch          {installed('torch')}" in lines
    assert list(Path.cwd().iterdir()) == []


def test_json_says_how_long_a_training_takes(tformer):
    report = json.loads(tformer("doctor", "--json").stdout)
    assert report["versions"]["numpy"] == importlib.metadata.version("numpy")
    assert report["machine"]["num_threads"] == 1
    assert report["machine"]["stores"] == str(Path.cwd() / "runs" / ".store")
    (speed,) = report["speed"].values()
    steps = load_config(ROOT / "configs" / "demo.yaml").training.max_steps
    assert speed["seconds"] == steps * speed["seconds_per_step"]


def test_a_broken_torch_leaves_the_rest(tformer, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = tformer("doctor")
    assert result.exit_code == 0
    assert "\ntorch: cannot be imported (import of torch halted" in result.stdout
    report = json.loads(tformer("doctor", "--json").stdout)
    assert (report["machine"], report["speed"]) == (None, {})
    assert any(problem.startswith("torch: cannot") for problem in report["problems"])
