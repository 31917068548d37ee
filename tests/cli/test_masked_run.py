"""What the command line does with a run that does not translate."""

import shutil
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent.parent / "data" / "demo"
TEXT = ("--source", str(DEMO / "valid.en"), "--target", str(DEMO / "valid.de"))


@pytest.mark.parametrize("command", [("translate",), ("eval",), ("score", *TEXT)])
def test_what_translates_refuses_it_in_one_line(masked_run, tformer, command):
    name, *options = command
    result = tformer(name, masked_run, *options, stdin="ab\n")
    assert result.exit_code == 2
    assert result.stderr == (
        f"{masked_run}: does not translate (model.kind masked_encoder); "
        "train an encoder_decoder that begins with it: training.init_from\n"
    )
    assert result.stdout == ""


def test_average_judges_it_by_its_loss(masked_run, tmp_path, tformer):
    run = shutil.copytree(masked_run, tmp_path / "run")
    result = tformer("average", run, "--last", "2")
    lines = result.stdout.splitlines()
    assert lines[0].endswith("the mean of step-000008, step-000006")
    assert lines[1].startswith("valid: loss ")
    assert "," not in lines[1]
    # No command takes a model that does not translate.
    assert result.stderr == ""
