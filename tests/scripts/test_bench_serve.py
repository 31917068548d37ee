"""The load test of the server, on a run of a moment."""

import json

import pytest
import serve
from serve import app
from typer.testing import CliRunner

from tformer_cli.errors import TrainingError

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")


@pytest.mark.slow
def test_clients_are_answered(toy_run):
    words = [str(toy_run), "--clients", "1,4", "--seconds", "0.5", "--rounds", "2", "--json"]
    printed = CliRunner().invoke(app, [*words, "--backend", "native"], catch_exceptions=False)
    printed_results = json.loads(printed.stdout)
    beside = printed_results["beside_disturbance"]
    assert beside["equal"] > 0
    assert beside["lost"] == 0
    results = printed_results["clients"]
    assert results.keys() == {"1", "4"}
    for result in results.values():
        assert len(result["requests_per_second"]) == 2
        assert 0 < result["p50_ms"] <= result["p99_ms"]


@pytest.mark.slow
def test_a_server_that_fails_is_named(tmp_path):
    with (
        pytest.raises(TrainingError, match="no such run folder"),
        serve.server(tmp_path / "none", "native"),
    ):
        pass


def test_the_table_has_a_row_for_each_number_of_clients():
    result = {"requests_per_second": [100.0, 300.0, 200.0], "p50_ms": 4.25, "p99_ms": 1234.5}
    lines = serve.table(
        {"clients": {"1": result, "32": result}, "beside_disturbance": {"equal": 3, "lost": 0}}
    ).splitlines()
    assert lines[0].split() == ["clients", "requests/s", "p50", "ms", "p99", "ms"]
    assert [line.split()[0] for line in lines[1:3]] == ["1", "32"]
    assert lines[-1].endswith(": 3 equal, 0 lost")
    assert lines[1].split()[-2:] == ["4.2", "1,234.5"]
