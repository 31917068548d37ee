"""What longer and longer files take, on a run of a moment."""

from pathlib import Path

import file_length
import pytest
import torch
from file_length import measure
from toy import write_toy

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
def test_each_engine_translates_a_file_of_the_length_asked_for(run):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    # CTranslate2 alone splits by SentencePiece, and the toy by characters.
    engines = ("auto", "native")
    result = measure(run, [23], 1, engines=engines)["23"]
    assert tuple(result["seconds"]) == tuple(result["peak_mib"]) == engines
    (auto,), (native,) = result["seconds"].values()
    assert result["ratios"] == {"native": [pytest.approx(native / auto)]}
    column = file_length.cells(result)
    assert list(column) == [
        "seconds: tformer",
        "seconds: tformer --backend native",
        "times as fast tformer is as tformer --backend native",
        "peak MiB: tformer",
        "peak MiB: tformer --backend native",
    ]
    # torch alone has more.
    assert result["peak_mib"]["native"] > 50


def test_lines_that_are_lost_are_told(run, monkeypatch):
    def translate(words):
        source, target = words[words.index("--input") + 1], words[words.index("--output") + 1]
        Path(target).write_bytes(Path(source).read_bytes().partition(b"\n")[2])
        return 2**20

    monkeypatch.setattr(file_length, "translate", translate)
    with pytest.raises(TrainingError, match=r"has lost lines \(4\)"):
        measure(run, [5], 1, engines=["native"])


@pytest.mark.slow
def test_a_translation_that_fails_is_told(run, tmp_path):
    words = file_length.command("native", run, tmp_path / "missing", tmp_path / "target", 1)
    with pytest.raises(TrainingError, match=r"has failed \(exit code 2\)"):
        file_length.translate(words)
