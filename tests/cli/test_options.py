"""What options mean for a config, without a model."""

import math
from pathlib import Path

import pytest

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.decoding import (
    BeamConfig,
    DecodingConfig,
    GreedyConfig,
    SampleConfig,
)
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.errors import ConfigError, UsageError
from tformer_cli.translate.options import SearchOptions

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
    assert SearchOptions(beam, None, settings).apply(config(own)) == expected


@pytest.mark.parametrize(
    ("own", "beam", "setting", "what"),
    [
        (BEAM, 5, "decoding={kind: sample, top_k: 10}", "kind is sample"),
        (BEAM, 5, "decoding={kind: greedy}", "kind is greedy"),
        (BEAM, 1, "decoding={kind: sample}", "kind is sample"),
        (BEAM, 5, "decoding.beam_size=8", "beam_size is 8"),
    ],
)
def test_a_beam_size_that_would_undo_a_setting_is_refused(own, beam, setting, what):
    with pytest.raises(UsageError) as raised:
        SearchOptions(beam, None, [setting]).apply(config(own))
    assert str(raised.value) == (
        f"`beam_size`: contradicts `settings`, by which {what} ({beam}); leave one of them out"
    )


@pytest.mark.parametrize(
    ("own", "beam", "key", "value", "kind"),
    [
        (BEAM, 1, "length_penalty", 0.5, "beam"),
        (BEAM, 1, "coverage_penalty", 0.5, "beam"),
        (BEAM, 1, "patience", 2.0, "beam"),
        (BEAM, 1, "num_beam_groups", 2, "beam"),
        (SampleConfig(), 5, "top_k", 10, "sample"),
    ],
)
def test_a_setting_of_a_search_that_the_beam_size_leaves_is_refused(own, beam, key, value, kind):
    with pytest.raises(ConfigError) as raised:
        SearchOptions(beam, None, [f"decoding.{key}={value}"]).apply(config(own))
    assert str(raised.value).startswith(f"`settings` decoding.{key}: belongs to kind: {kind}")


@pytest.mark.parametrize("beam", [None, 5])
@pytest.mark.parametrize("key", ["decoding.length_penalty=2.0", "decoding={length_penalty: 2.0}"])
def test_a_length_penalty_that_would_undo_a_setting_is_refused(beam, key):
    settings = [key, "decoding.patience=3.0"]
    with pytest.raises(UsageError) as raised:
        SearchOptions(beam, 0.5, settings).apply(config(BEAM))
    assert str(raised.value) == (
        "`length_penalty`: contradicts `settings`, by which length_penalty is 2.0 (0.5); "
        "leave one of them out"
    )
    assert SearchOptions(beam, 2.0, settings).apply(config(BEAM)).patience == 3.0
    for others in (settings[1:], ["decoding={beam_size: 5}"]):
        search = SearchOptions(beam, 0.5, others).apply(config(BEAM))
        assert search.length_penalty == 0.5


def test_a_beam_size_that_the_groups_of_the_run_do_not_divide_is_refused():
    with pytest.raises(ConfigError) as raised:
        SearchOptions(5).apply(config(BeamConfig(beam_size=4, num_beam_groups=2)))
    assert str(raised.value) == "decoding.num_beam_groups: must divide beam_size 5 (2)"


@pytest.mark.parametrize(
    ("length_penalty", "message"),
    [
        (-1.0, "must be at least 0 (-1.0)"),
        (11.0, "must be at most 10 (11.0)"),
        (math.inf, "must be at most 10 (inf)"),
        (math.nan, "must be at least 0 (nan)"),
    ],
)
def test_a_length_penalty_keeps_to_the_limits_of_its_key(length_penalty, message):
    with pytest.raises(ConfigError) as raised:
        SearchOptions(None, length_penalty).apply(config(BEAM))
    assert str(raised.value) == f"decoding.length_penalty: {message}"
