"""What a training reports, and what it makes of files that others have changed."""

import json
from dataclasses import replace

import pytest

from tformer_cli.checkpoint.state import TrainingState
from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.run_directory import RunDirectory
from tformer_cli.training.reporting import Reporter

REPORT = json.dumps({"kind": "train", "step": 3, "loss": 1.0})


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[1]",
        "3",
        "null",
        '{"kind": "rollback", "step": 1}',
        '{"kind": "train", "step": "a"}',
        '{"kind": ["train"], "step": 1}',
        '{"step": 1}',
        "[" * 100_000,
        REPORT[:-3],
    ],
)
def test_lines_that_are_no_reports_are_left_out(tmp_path, line):
    run = RunDirectory(tmp_path)
    run.metrics_file.write_text(f"{line}\n{REPORT}\n", encoding="utf-8")
    before = TrainingState.beginning("", {})
    Reporter(run, TrainingConfig()).cut_back(before)
    assert run.metrics_file.read_text(encoding="utf-8") == ""
    run.metrics_file.write_text(f"{REPORT}\n{line}\n{REPORT}\n", encoding="utf-8")
    Reporter(run, TrainingConfig()).cut_back(replace(before, step=3))
    assert run.metrics_file.read_text(encoding="utf-8") == f"{REPORT}\n" * 2
