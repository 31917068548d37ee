"""What longer and longer files take, on a run of a moment."""

import json

import file_length
import pytest
import torch
from file_length import app, measure
from toy import write_toy
from typer.testing import CliRunner

from tformer_cli.config.load import load_config
from tformer_cli.errors import TrainingError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.trainer import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    settings = ["training.max_steps=6", "training.validate_every=6"]
    train(
        load_config(write_toy(folder / "data"), settings),
        RunDirectory(folder / "run"),
        device=torch.device("cpu"),
    )
    return folder / "run"


@pytest.mark.slow
def test_a_file_of_the_length_asked_for_is_translated(run):
    printed = CliRunner().invoke(app, [str(run), "--lines", "23", "--json"], catch_exceptions=False)
    results = json.loads(printed.stdout)
    assert results["lines"] == 23
    # torch alone has more.
    assert results["peak_mib"] > 50
    assert results["seconds"] > 0


def test_lines_that_are_lost_are_told(run, monkeypatch):
    def translate(folder, source, target, beam):
        target.write_bytes(source.read_bytes().partition(b"\n")[2])
        return 2**20

    monkeypatch.setattr(file_length, "translate", translate)
    with pytest.raises(TrainingError, match=r"has lost lines \(4\)"):
        list(measure(run, [5], 1))


@pytest.mark.slow
def test_a_translation_that_fails_is_told(run, tmp_path):
    with pytest.raises(TrainingError, match=r"has failed \(exit code 2\)"):
        file_length.translate(run, tmp_path / "missing", tmp_path / "target", 1)
