"""What options mean for a config, without a model."""

import math
from pathlib import Path

import pytest

from tformer_cli.cli.options import chosen_decoding
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, ParallelText, TrainingText
from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.errors import ConfigError, UsageError

BEAM = BeamConfig(beam_size=4, max_length=20, length_penalty=0.6)


def config(decoding: DecodingConfig) -> Config:
    files = {"source": Path("source"), "target": Path("target")}
    data = DataConfig(train=(TrainingText(**files),), valid=ParallelText(**files))
    return Config(data=data, decoding=decoding)


@pytest.mark.parametrize(
    ("own", "beam", "settings", "expected"),
    [
        (BEAM, 1, [], GreedyConfig(max_length=20)),
        (BEAM, 8, [], BeamConfig(beam_size=8, max_length=20, length_penalty=0.6)),
        (SampleConfig(top_k=3), 8, [], BeamConfig(beam_size=8)),
        (BEAM, 1, ["decoding.max_length=9"], GreedyConfig(max_length=9)),
        (BEAM, 1, ["decoding={kind: greedy, min_length: 2}"], GreedyConfig(min_length=2)),
        (
            BEAM,
            6,
            ["decoding.patience=2.0", "decoding.num_beam_groups=3"],
            BeamConfig(
                beam_size=6, max_length=20, length_penalty=0.6, patience=2.0, num_beam_groups=3
            ),
        ),
        (
            BEAM,
            6,
            ["decoding={beam_size: 6, num_beam_groups: 2}"],
            BeamConfig(beam_size=6, num_beam_groups=2),
        ),
        (SampleConfig(), 6, ["decoding={kind: beam, beam_size: 6}"], BeamConfig(beam_size=6)),
    ],
)
def test_a_beam_size_keeps_what_settings_ask_for(own, beam, settings, expected):
    assert chosen_decoding(config(own), beam, None, settings) == expected


@pytest.mark.parametrize(
    ("own", "beam", "setting", "what"),
    [
        (BEAM, 5, "decoding={kind: sample, top_k: 10}", "kind is sample"),
        (BEAM, 5, "decoding={kind: greedy}", "kind is greedy"),
        (BEAM, 1, "decoding={kind: sample}", "kind is sample"),
        (BEAM, 1, "decoding.length_penalty=0.5", "length_penalty is 0.5"),
        (BEAM, 1, "decoding.coverage_penalty=0.5", "coverage_penalty is 0.5"),
        (BEAM, 1, "decoding.patience=2.0", "patience is 2.0"),
        (BEAM, 1, "decoding.num_beam_groups=2", "num_beam_groups is 2"),
        (BEAM, 5, "decoding.beam_size=8", "beam_size is 8"),
        (SampleConfig(), 5, "decoding.top_k=10", "top_k is 10"),
    ],
)
def test_a_beam_size_that_would_undo_a_setting_is_refused(own, beam, setting, what):
    with pytest.raises(UsageError) as raised:
        chosen_decoding(config(own), beam, None, [setting])
    assert str(raised.value) == (
        f"--beam: contradicts --set, by which {what}; got {beam}; leave one of them out"
    )


@pytest.mark.parametrize("beam", [None, 5])
def test_a_length_penalty_that_would_undo_a_setting_is_refused(beam):
    settings = ["decoding.length_penalty=2.0", "decoding.patience=3.0"]
    with pytest.raises(UsageError) as raised:
        chosen_decoding(config(BEAM), beam, 0.5, settings)
    assert str(raised.value) == (
        "--length-penalty: contradicts --set, by which length_penalty is 2.0; got 0.5; "
        "leave one of them out"
    )
    assert chosen_decoding(config(BEAM), beam, 2.0, settings).patience == 3.0
    assert chosen_decoding(config(BEAM), beam, 0.5, settings[1:]).length_penalty == 0.5
    assert (
        chosen_decoding(config(BEAM), beam, 0.5, ["decoding={beam_size: 5}"]).length_penalty == 0.5
    )


def test_a_beam_size_that_the_groups_of_the_run_do_not_divide_is_refused():
    with pytest.raises(ConfigError) as raised:
        chosen_decoding(config(BeamConfig(beam_size=4, num_beam_groups=2)), 5, None)
    assert str(raised.value) == "decoding.num_beam_groups: must divide beam_size (5); got 2"


@pytest.mark.parametrize(
    ("length_penalty", "message"),
    [
        (-1.0, "must be at least 0; got -1.0"),
        (11.0, "must be at most 10; got 11.0"),
        (math.inf, "must be at most 10; got inf"),
        (math.nan, "must be at least 0; got nan"),
    ],
)
def test_a_length_penalty_keeps_to_the_limits_of_its_key(length_penalty, message):
    with pytest.raises(ConfigError) as raised:
        chosen_decoding(config(BEAM), None, length_penalty)
    assert str(raised.value) == f"decoding.length_penalty: {message}"
