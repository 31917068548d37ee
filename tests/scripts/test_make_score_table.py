import json
import shutil

import make_score_table
import pytest

from tformer_cli.checkpoint.state import load_state
from tformer_cli.checkpoint.trained_model import load_trained_model
from tformer_cli.errors import CheckpointError
from tformer_cli.run_directory import RunDirectory

EMPTY = "a\n<!-- scores -->\n<!-- end of scores -->\nb\n"


def test_a_row_says_what_the_run_folder_says(toy_run, tformer, tmp_path):
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(toy_run, run.path, ignore=shutil.ignore_patterns("eval"))
    score = json.loads(tformer("eval", run.path, "--json").stdout)["toy"]["scores"][0]
    state = load_state(run.pointed("last"))
    parameters = load_trained_model(run).model.num_parameters()
    threads = state.environment["threads"]
    row = make_score_table.rows(run)[0]
    cells = [cell.strip() for cell in row.replace("\\|", "/").strip("|").split("|")]
    assert cells == [
        "[run](configs/run.yaml)",
        "toy, 10 sentences",
        f"{score['score']:.2f}",
        f"`{score['signature'].replace('|', '/')}`",
        "beam 2",
        f"{state.seconds / 60:.0f}",
        f"{threads} thread{'s' * (threads != '1')}, {state.environment['device']}",
        f"{parameters / 1e6:.1f} M",
    ]


def test_rows_replace_those_of_the_same_config_and_leave_the_others():
    first = make_score_table.with_rows(EMPTY, ["| x | 1 |", "| y | 2 |"])
    second = make_score_table.with_rows(first, ["| x | 3 |", "| z | 4 |"])
    rows = second.split("<!-- scores -->\n")[1].split("<!-- end")[0].splitlines()[2:]
    assert rows == ["| x | 3 |", "| y | 2 |", "| z | 4 |"]
    assert second.startswith("a\n<!--")
    assert second.endswith("-->\nb\n")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        make_score_table.rows(RunDirectory(tmp_path))
    assert str(caught.value) == f"{tmp_path}: is no finished run; train it first"
