import dataclasses
import json
import math

import pytest
from saving import STATE, message

from tformer_cli.storage.integrity import verify_checksums, write_checksums
from tformer_cli.storage.run_directory import STATE_FILE
from tformer_cli.storage.state import TrainingProgress, load_progress


@pytest.mark.parametrize("content", ["", "[]", "{", '{"step": 3}'])
def test_a_damaged_state_is_refused(saved, content):
    (saved / STATE_FILE).write_text(content)
    text = message(load_progress, saved)
    assert text.startswith(f"{saved / STATE_FILE}: is damaged (")
    assert text.endswith("; use an earlier checkpoint")


ODD = ["x", "1", -3, 1.5, True, [], {}, ["x"], {"x": 1}, [[0, -1]], math.nan, math.inf, 10**400]
# Of those, what a field may have.
POSSIBLE = {
    "best_score": [-3, 1.5],
    "score": [-3, 1.5],
    "seconds": [1.5],
    "loss_scale": [1.5],
    "data_fingerprint": ["x", "1"],
    "tokenizer_fingerprint": ["x", "1"],
    "validation_fingerprint": ["x", "1"],
    "environment": [{}],
    "settings": [{}],
    "skipped_batches": [[]],
    "is_scheduled": [True],
}


FIELDS = [field.name for field in dataclasses.fields(TrainingProgress)] + ["format_version"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_that_no_training_writes_is_refused(saved, field):
    file = saved / STATE_FILE
    content = json.loads(file.read_text())
    refused = []
    for value in ODD:
        file.write_text(json.dumps(content | {field: value}))
        write_checksums(saved)
        problem = verify_checksums(saved, (STATE_FILE,))
        if problem is not None:
            assert str(problem) == message(load_progress, saved)
            assert str(problem).startswith(f"{file}: is damaged ({field} ")
            refused.append(value)
    possible = [value for value in ODD if value not in refused]
    assert [str(value) for value in possible] == [str(x) for x in POSSIBLE.get(field, [])]


def test_a_state_of_an_older_program_is_read(saved):
    file = saved / STATE_FILE
    content = json.loads(file.read_text())
    for name in (
        "tokenizer_fingerprint",
        "settings",
        "validation_fingerprint",
        "score",
        "loss_scale",
    ):
        del content[name]
    file.write_text(json.dumps(content | {"format_version": 2}))
    assert load_progress(saved) == STATE


def test_a_state_with_the_words_of_format_3_is_read(saved):
    (saved / STATE_FILE).write_text(
        """{
  "step": 7,
  "epoch": 1,
  "batch": 3,
  "best_step": 4,
  "best_score": 12.5,
  "num_tokens": 1000,
  "seconds": 2.5,
  "data_fingerprint": "abc",
  "environment": {"torch": "2"},
  "max_source_sentences": 2,
  "tokenizer_fingerprint": "def",
  "settings": {"seed": "1"},
  "judged_by": "ghi",
  "score": 11.5,
  "num_stale": 3,
  "left_out": [[0, 5], [1, 2]],
  "num_failed": 1,
  "learning_rate_factor": 0.25,
  "num_rollbacks": 2,
  "loss_scale": 8.0,
  "num_scaled": 6,
  "is_due": true,
  "format_version": 3
}"""
    )
    assert load_progress(saved) == dataclasses.replace(
        STATE,
        max_source_sentences=2,
        tokenizer_fingerprint="def",
        settings={"seed": "1"},
        validation_fingerprint="ghi",
        score=11.5,
        num_bad_validations=3,
        num_consecutive_skips=1,
        loss_scale=8.0,
        num_loss_scale_steps=6,
        is_scheduled=True,
    )


def test_nesting_without_end_is_refused(saved):
    (saved / STATE_FILE).write_text("[" * 100_000)
    assert "is damaged (nested too deeply); " in message(load_progress, saved)


def test_a_newer_format_is_refused(saved):
    file = saved / STATE_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 99}))
    assert message(load_progress, saved) == (
        f"{file}: was written by a newer tformer than this one, which reads format 4 (format 99); "
        "upgrade tformer"
    )
