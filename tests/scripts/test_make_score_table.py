import html
import json
import shutil
from dataclasses import asdict

import make_score_table
import pytest
from typer.testing import CliRunner

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import load_progress
from tformer_cli.storage.trained_model import load_trained_model

EMPTY = "a\n<!-- scores -->\n<!-- end of scores -->\nb\n"


def test_a_row_says_what_the_run_folder_says(toy_run, tformer, tmp_path):
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(toy_run, run.path, ignore=shutil.ignore_patterns("eval"))
    score = json.loads(tformer("eval", run.path, "--json").stdout)["toy"]["scores"][0]
    state = load_progress(run.pointed("last"))
    parameters = load_trained_model(run).model.num_parameters()
    threads = state.environment["threads"]
    row = make_score_table.rows([run])[0]
    cells = [html.unescape(cell.strip()) for cell in row.strip("|").split("|")]
    assert cells == [
        "run",
        "toy, 10 sentences",
        f"{score['score']:.2f}",
        f"<code>{score['signature']}</code>",
        "beam 2",
        f"{state.seconds / 60:.0f}",
        f"{threads} thread{'s' * (threads != '1')}, {state.environment['device']}",
        f"{parameters / 1e6:.1f} M",
    ]


@pytest.fixture
def seeds(toy_run, tmp_path):
    """Three runs that differ in BLEU and in how long they took."""
    runs = [RunDirectory(tmp_path / name) for name in ("run", "two", "three")]
    scores, times = (40.18, 40.85, 39.86), (30, 31, 35)
    for seed, (run, score, minutes) in enumerate(zip(runs, scores, times, strict=True)):
        shutil.copytree(toy_run, run.path, ignore=shutil.ignore_patterns("eval"))
        file = run.pointed("last") / "state.json"
        state = json.loads(file.read_text()) | {"seconds": 60.0 * minutes}
        state["settings"]["seed"] = str(seed)
        file.write_text(json.dumps(state))
        result = {"name": "BLEU", "score": score, "signature": "s", "num_sentences": 9}
        search = asdict(BeamConfig(beam_size=5))
        content = {"scores": [result], "decoding": search}
        run.eval.mkdir()
        (run.eval / "toy.json").write_text(json.dumps(content))
    return runs


def test_several_seeds_share_a_row_with_their_mean_and_deviation(seeds):
    (row,) = make_score_table.rows(seeds)
    start = "| run | toy, 9 sentences | 40.3 ± 0.5 (3 seeds) | <code>s</code> | beam 5 | 32 |"
    assert row.startswith(start)


def test_seeds_that_were_scored_otherwise_share_no_row(seeds):
    file = seeds[1].eval / "toy.json"
    file.write_text(file.read_text().replace('"beam_size": 5', '"beam_size": 4'))
    with pytest.raises(CheckpointError) as caught:
        make_score_table.rows(seeds)
    assert str(caught.value) == (
        f"{seeds[1].path}: was scored otherwise (another test set, signature or search than "
        f"{seeds[0].path}); score both by the same `tformer eval`"
    )


@pytest.mark.parametrize(("key", "value"), [("seed", "0"), ("model.dropout", "0.5")])
def test_runs_that_differ_by_something_else_than_the_seed_share_no_row(seeds, key, value):
    file = seeds[1].pointed("last") / "state.json"
    state = json.loads(file.read_text())
    state["settings"][key] = value
    file.write_text(json.dumps(state))
    with pytest.raises(CheckpointError) as caught:
        make_score_table.rows(seeds)
    assert str(caught.value) == (
        f"{seeds[1].path}: is not the config of {seeds[0].path} with another seed; "
        "leave out the comma before it"
    )


def test_the_command_renews_the_page_and_says_what_it_takes(seeds, tmp_path, monkeypatch):
    monkeypatch.setattr(make_score_table, "PAGE", tmp_path / "page.md")
    make_score_table.PAGE.write_text(EMPTY)
    runner = CliRunner()
    assert "RUN[,RUN...]" in runner.invoke(make_score_table.app, ["--help"]).stdout
    done = runner.invoke(make_score_table.app, [",".join(str(run.path) for run in seeds)])
    assert done.exception is None
    assert make_score_table.PAGE.read_text().splitlines()[4:-2] == make_score_table.rows(seeds)


def test_rows_replace_those_of_the_same_config_and_leave_the_others():
    first = make_score_table.with_rows(EMPTY, ["| x | 1 |", "| y | 2 |"])
    second = make_score_table.with_rows(first, ["| x | 3 |", "| z | 4 |"])
    rows = second.split("<!-- scores -->\n")[1].split("<!-- end")[0].splitlines()[2:]
    assert rows == ["| x | 3 |", "| y | 2 |", "| z | 4 |"]
    assert second.startswith("a\n<!--")
    assert second.endswith("-->\nb\n")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        make_score_table.rows([RunDirectory(tmp_path)])
    assert str(caught.value) == f"{tmp_path}: is no finished run; train it first"
