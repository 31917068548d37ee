"""The progress of a training at a terminal."""

import json
import math
import re
import shutil
import sys

import pytest
import torch
from terminals import open_terminal
from toy import MASKED, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.training.trainer import train


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """Train a toy, and return what a terminal of some width shows, in pieces of lines."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def call(*settings: str, columns: int = 80, live: bool = False, **options: str) -> list[str]:
        config = load_config(write_toy(tmp_path / "data", **options), settings)
        with open_terminal(columns) as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal.stream)
            train(config, RunDirectory(tmp_path / "run"), device=torch.device("cpu"), live=live)
            text = terminal.text()
        return re.split(r"[\r\n]|\x1b\[A", text)

    return call


def test_a_status_comes_before_the_first_report_and_no_report_scrolls_by(shown, tmp_path):
    pieces = shown("training.report_every=24")
    assert "the first step" in pieces
    assert any(piece.startswith("loss ") and " tok/s" in piece for piece in pieces)
    assert not [piece for piece in pieces if "ETA" in piece]
    # The log has what a pipe gets.
    log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert re.search(r" step 24/24  loss .* ETA 0:00$", log, re.MULTILINE)


def test_validations_count_their_lines(shown):
    pieces = shown()
    assert "validating 0/12" in pieces
    (best,) = {piece for piece in pieces if piece.startswith("\x1b[32mvalid 12  loss ")}
    assert best.endswith("(best so far)\x1b[0m")


def test_a_masked_encoder_counts_them_as_well(shown):
    assert "validating 0/12" in shown(config=MASKED)


@pytest.mark.parametrize("columns", [50, 80])
def test_what_is_redrawn_fits_the_terminal(shown, columns):
    # Of a line that wraps, no cursor movement reaches the beginning.
    pieces = shown("training.report_every=1", "training.max_steps=120", columns=columns)
    redrawn = [piece for piece in pieces if re.match(r"step \d+/120 |loss .* tok/s|valida", piece)]
    assert len(redrawn) > 5
    assert max(map(len, redrawn)) <= columns
    samples = [piece for piece in pieces if re.match("  (source|reference|translation) ", piece)]
    assert samples
    assert max(map(len, samples)) < columns


def test_live_curves_are_redrawn_above_the_progress_and_go_on_after_a_break(shown, tmp_path):
    pieces = shown("training.report_every=6", live=True)
    assert "the first step" in pieces
    title = re.compile(r"loss without label smoothing ([\d.]+) +validation BLEU")
    titles = list(filter(None, map(title.match, pieces)))
    losses = [
        math.log(report["perplexity"])
        for report in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        if report["kind"] == "train"
    ]
    drawn = list(dict.fromkeys(match[1] for match in titles))
    assert drawn == [f"{loss:.2f}" for loss in losses]
    axes = [piece.split() for piece in pieces if re.fullmatch(r" {8}[\d ]+", piece)]
    assert ["6", "24", "12", "24"] in axes
    # Lines that follow begin at the margin.
    assert pieces[-1] == ""
    (tmp_path / "run" / "last").write_text("step-000012\n")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000024")
    again = [piece.split() for piece in shown("training.report_every=6", live=True)]
    assert ["6", "12", "12", "12"] in again
    assert ["6", "24", "12", "24"] in again


@pytest.mark.parametrize("columns", [30, 50, 80])
def test_live_curves_fit_the_terminal(shown, columns):
    pieces = shown("training.report_every=6", columns=columns, live=True)
    curves = [piece for piece in pieces if re.search("[\u2801-\u28ff]", piece)]
    assert len(curves) > 8
    assert max(map(len, curves)) < columns


def test_a_masked_encoder_has_a_live_curve_of_the_validation_loss(shown):
    assert any("validation loss " in piece for piece in shown(config=MASKED, live=True))


def test_live_without_a_terminal_is_plain_lines(tmp_path, capsys):
    config = load_config(write_toy(tmp_path / "data"))
    train(config, RunDirectory(tmp_path / "run"), device=torch.device("cpu"), live=True)
    assert not re.search("[\u2800-\u28ff\r\x1b]", capsys.readouterr().err)
