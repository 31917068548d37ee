import json
import shutil

import pytest


@pytest.fixture
def run(toy_run, tmp_path):
    """A copy to change."""
    return shutil.copytree(toy_run, tmp_path / "run")


def test_average_says_what_it_is_the_mean_of_and_how_good_it_is(run, tformer):
    lines = tformer("average", run, "--last", "2").stdout.splitlines()
    checkpoint = run / "checkpoints" / "average-last-2"
    assert lines[0] == f"{checkpoint}: the mean of step-000150, step-000144"
    assert lines[1].startswith("valid: loss ")
    assert "BLEU = " in lines[1]
    assert lines[2].startswith(("better than the best", "not better than the best"))


def test_its_score_is_what_eval_says_of_it(run, tformer):
    found = json.loads(tformer("average", run, "--last", "2", "--json").stdout)
    assert found["members"] == ["step-000150", "step-000144"]
    result = tformer(
        "eval", run, "--split", "valid", "--beam", "1", "--checkpoint", "average-last-2", "--json"
    )
    assert json.loads(result.stdout)["valid"]["scores"][0]["score"] == found["score"]


def test_torchrun_is_refused(run, tformer, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = tformer("average", run)
    assert (result.exit_code, result.stderr) == (
        2,
        "tformer average: is for one process; got 2 processes; drop torchrun\n",
    )


def test_last_and_best_contradict_each_other(run, tformer):
    result = tformer("average", run, "--last", "2", "--best", "2")
    assert result.exit_code == 2
    assert result.stderr == "--best: contradicts --last; leave one of them out\n"


def test_as_many_as_there_are_are_averaged_up_to_five(run, tformer):
    best = (run / "best").read_text().strip()
    steps = sorted((run / "checkpoints").glob("step-*"))
    kept = {*steps[-2:], run / "checkpoints" / best, steps[0]}
    for checkpoint in {*steps} - kept:
        shutil.rmtree(checkpoint)
    steps = sorted(kept)
    result = tformer("average", run)
    assert result.exit_code == 0, result.stderr
    names = ", ".join(checkpoint.name for checkpoint in steps[::-1])
    average = f"{run}/checkpoints/average-last-{len(steps)}"
    assert result.stdout.startswith(f"{average}: the mean of {names}\n")
    assert result.stderr.startswith(f"next: tformer eval {run}")
