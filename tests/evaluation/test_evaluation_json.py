"""What `tformer eval --json` prints is JSON, whatever the loss."""

import json
import math
from pathlib import Path

import pytest

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.config.schema.text import ParallelText
from tformer_cli.evaluation.evaluate import Evaluation
from tformer_cli.evaluation.likelihood import Likelihood


def plain(loss: float) -> dict[str, object]:
    evaluation = Evaluation(
        scores={},
        likelihood=Likelihood(loss, accuracy=0.25, num_tokens=4),
        hypotheses=("a",),
        decoding=BeamConfig(),
        mbr=None,
        num_models=1,
        step=7,
        models=(),
        text=ParallelText(source=Path("a"), target=Path("b")),
        metrics=(),
        fingerprint="",
    )
    # As in JSON: no NaN and no Infinity.
    return json.loads(json.dumps(evaluation.as_json(), allow_nan=False))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_null(loss):
    assert plain(loss)["loss"] is None


def test_a_finite_loss_is_itself():
    content = plain(2.0)
    assert content["loss"] == 2.0
    assert content["perplexity"] == pytest.approx(math.e**2)
