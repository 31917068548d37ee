"""What a training reports, and what it makes of files that others have changed."""

import json
from dataclasses import replace

import pytest

from tformer_cli.config.schema.training import TrainingConfig
from tformer_cli.evaluation.evaluate import Likelihood
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.state import TrainingProgress
from tformer_cli.training.logging import TrainingLogger
from tformer_cli.training.validation import Validation

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
    before = TrainingProgress.initial("", {})
    TrainingLogger(run, TrainingConfig()).truncate(before)
    assert run.metrics_file.read_text(encoding="utf-8") == ""
    run.metrics_file.write_text(f"{REPORT}\n{line}\n{REPORT}\n", encoding="utf-8")
    TrainingLogger(run, TrainingConfig()).truncate(replace(before, step=3))
    assert run.metrics_file.read_text(encoding="utf-8") == f"{REPORT}\n" * 2


def test_what_a_text_holds_moves_no_cursor(tmp_path, capsys):
    run = RunDirectory(tmp_path)
    TrainingLogger(run, TrainingConfig()).log(
        "source \x1b[31mred\r\ntranslation \x9b2J \u202e ok é"
    )
    shown = "source \\x1b[31mred\\r\ntranslation \\x9b2J \\u202e ok é\n"
    assert capsys.readouterr().err.endswith(shown)
    assert run.log_file.read_text(encoding="utf-8").endswith(shown)


def test_samples_keep_the_text_as_it_is(tmp_path, capsys):
    run = RunDirectory(tmp_path)
    validation = Validation(Likelihood(1.0, 0.5, 10))
    texts = ("\x1b[31mred", "b", "c")
    TrainingLogger(run, TrainingConfig()).log_validation(3, validation, [texts], best=True)
    (sample,) = run.samples.iterdir()
    assert "\x1b[31mred" in sample.read_text(encoding="utf-8")
    assert "\x1b" not in capsys.readouterr().err
