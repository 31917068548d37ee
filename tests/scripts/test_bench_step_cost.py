"""The cost of settings: each takes its steps in turns, and times are multiples of the plain one."""

import json
from pathlib import Path

import pytest
import step_cost
from step_cost import table
from toy import write_toy
from typer.testing import CliRunner


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "data", pairs=60)


def test_times_are_multiples_of_those_without_a_change():
    speeds = {"": [100.0, 200.0, 300.0], "x=1": [50.0, 50.0, 200.0]}
    assert [line.split() for line in table(speeds).split("\n")][1:] == [
        ["(the", "config's", "own)", "200", "1.0", "(1.0-1.0)"],
        ["x=1", "50", "2.0", "(1.5-4.0)"],
    ]


@pytest.mark.slow
def test_each_variant_has_a_speed_for_every_round(config_file):
    variant = "training.consistency={kind: r_drop}"
    words = [str(config_file), "--variant", variant, "--seconds", "0.1", "--rounds", "2", "--json"]
    printed = CliRunner().invoke(step_cost.app, words)
    assert printed.exception is None, printed.exception
    speeds = json.loads(printed.stdout)
    assert list(speeds) == ["(the config's own)", variant]
    assert all(len(own) == 2 and min(own) > 0 for own in speeds.values())
