import random
import shutil

import pytest
import torture
from safetensors.torch import load_file, save_file

from tformer_cli.storage.run_directory import RunDirectory


def test_what_differs_between_two_runs_is_named(toy_run, tmp_path):
    one, other = RunDirectory(toy_run), RunDirectory(tmp_path / "run")
    shutil.copytree(one.path, other.path)
    assert torture.differences(one, other) == []
    file = other.pointed("last") / "model.safetensors"
    weights = load_file(file)
    name = min(weights)
    weights[name].view(-1)[0] += 1e-3
    save_file(weights, file)
    assert torture.differences(one, other) == [f"model.safetensors: {name}"]
    lines = other.metrics_file.read_text().splitlines(keepends=True)
    other.metrics_file.write_text("".join(lines[1:]))
    (other.path / "best").write_text("step-000000\n")
    shutil.rmtree(other.step_checkpoints()[0])
    next(other.samples.iterdir()).unlink()
    assert torture.differences(one, other) == [
        "best",
        "checkpoints",
        f"model.safetensors: {name}",
        "metrics.jsonl",
        "samples",
    ]


@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        pytest.param(4, 1, marks=pytest.mark.slow),
        pytest.param(10, 2, marks=pytest.mark.exhaustive),
        pytest.param(10, 3, marks=pytest.mark.exhaustive),
    ],
)
def test_kills_at_random_moments_change_no_bit(tmp_path, kills, seed):
    config_file = torture.write_task(tmp_path / "task")
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    seconds = torture.train_unbroken(config_file, unbroken)
    chooser = random.Random(seed)
    torture.train_killed(config_file, killed, kills=kills, longest=seconds, chooser=chooser)
    assert torture.differences(RunDirectory(unbroken), RunDirectory(killed)) == []
