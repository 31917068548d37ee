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
    result = measure(run, 23, 1, 1, engines)
    assert tuple(result["lines_per_second"]) == tuple(result["peak_mib"]) == engines
    # torch alone has more.
    assert result["peak_mib"]["native"] > 50


def test_a_column_has_seconds_ratios_and_memory():
    speeds = {"auto": [100.0, 50.0], "native": [25.0, 25.0]}
    result = {"lines_per_second": speeds, "peak_mib": {"auto": 80.4, "native": 1234.5}}
    assert file_length.cells(100, result) == {
        "seconds: tformer": "1.5 (1.0-2.0)",
        "seconds: tformer --backend native": "4.0 (4.0-4.0)",
        "times as fast tformer is as tformer --backend native": "3.0 (2.0-4.0)",
        "peak MiB: tformer": "80",
        "peak MiB: tformer --backend native": "1,234",
    }


def test_lines_that_are_lost_are_named(run, monkeypatch):
    class Command:
        seconds, peak_mib = 1.0, 1.0

        def __init__(self, *words: str) -> None:
            source, target = words[words.index("--input") + 1], words[words.index("--output") + 1]
            Path(target).write_bytes(Path(source).read_bytes().partition(b"\n")[2])

    monkeypatch.setattr(file_length, "Command", Command)
    with pytest.raises(TrainingError, match=r"has lost lines \(4\)"):
        measure(run, 5, 1, 1, ["native"])


@pytest.mark.slow
def test_a_translation_that_fails_is_named(run, tmp_path):
    words = file_length.words_of("native", run, tmp_path / "missing", tmp_path / "target", 1)
    with pytest.raises(TrainingError, match=r"has failed \(.*missing.*no such file"):
        file_length.Command(*words)
