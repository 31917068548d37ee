"""Former names of keys still count, in files, overrides and stored settings, with one warning."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tformer_cli.config.load import dump_config, load_config
from tformer_cli.config.renamed import (
    RenamedKeysWarning,
    _enter,
    _formers,
    current_path,
    current_settings,
    former_repr,
)
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.config.schema.fields import annotations, leaves
from tformer_cli.errors import ConfigError

DATA = "data: {train: [{source: a, target: b}], valid: {source: a, target: b}}\n"
OLD = """\
model:
  tie: output
  window: 3
  latent: {dim: 8, rotary_dim: 4}
  positions:
    kind: rotary
    scaling: {kind: yarn, factor: 2, original_length: 9, fast: 30, slow: 2}
training:
  accumulate: 2
  select: loss
  watch_parts: true
  initialize_from: runs/first
  validation_decoding: {kind: beam, size: 3}
decoding: {size: 4, groups: 2, diversity: 0.25, no_repeat_ngram: 3}
"""
NEW = """\
model:
  tie_embeddings: output
  sliding_window: 3
  latent: {kv_lora_rank: 8, rope_head_dim: 4}
  positions:
    kind: rotary
    scaling: {kind: yarn, factor: 2, original_length: 9, beta_fast: 30, beta_slow: 2}
training:
  gradient_accumulation_steps: 2
  selection_metric: loss
  log_parameter_norms: true
  init_from: runs/first
  validation_decoding: {kind: beam, beam_size: 3}
decoding: {beam_size: 4, num_beam_groups: 2, diversity_penalty: 0.25, no_repeat_ngram_size: 3}
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "x.yaml"
    file.write_text(DATA + text, encoding="utf-8")
    return file


def test_a_file_of_former_names_is_that_of_current_ones_with_one_warning(tmp_path):
    file = write(tmp_path, OLD)
    with pytest.warns(RenamedKeysWarning) as warned:
        old = load_config(file)
    assert old == load_config(write(tmp_path, NEW))
    (warning,) = warned
    said = str(warning.message)
    assert said.startswith(
        f"{file}: uses renamed keys; write model.tie_embeddings for tie, "
        "model.sliding_window for window, "
    )
    assert (said.count(" for "), said[-13:]) == (3, ", and 12 more")


def test_a_former_kind_counts(tmp_path):
    with pytest.warns(RenamedKeysWarning, match="write model.positions.kind: t5 for relative"):
        old = load_config(write(tmp_path, "model: {positions: {kind: relative}}\n"))
    assert old.model.positions.kind == "t5"


def test_a_masked_encoder_of_former_names(tmp_path):
    data = "data: {train: [{text: a}], valid: {text: a}}\ntraining: {selection_metric: loss}\n"
    file = tmp_path / "x.yaml"
    file.write_text(data + "model: {kind: masked_encoder, mask_share: 0.3}\n", encoding="utf-8")
    with pytest.warns(RenamedKeysWarning, match="write model.mask_prob for mask_share$"):
        assert load_config(file).model.mask_prob == 0.3


@pytest.mark.parametrize("text", [OLD, NEW])
@pytest.mark.filterwarnings("ignore::tformer_cli.config.renamed.RenamedKeysWarning")
@pytest.mark.parametrize(
    "settings",
    [
        ["decoding.size=6"],
        ["decoding.beam_size=6"],
        ["decoding={size: 6, groups: 2, diversity: 0.25, no_repeat_ngram: 3}"],
    ],
)
def test_an_override_replaces_a_key_of_either_name(tmp_path, text, settings):
    expected = NEW.replace("beam_size: 4", "beam_size: 6")
    assert load_config(write(tmp_path, text), settings) == load_config(write(tmp_path, expected))


def test_an_override_of_a_former_name_is_one_warning(tmp_path):
    with pytest.warns(RenamedKeysWarning) as warned:
        load_config(write(tmp_path, NEW), ["decoding.size=6"])
    assert [str(warning.message) for warning in warned] == [
        "`settings` decoding.size: uses renamed keys; write decoding.beam_size for size"
    ]


@pytest.mark.filterwarnings("ignore::tformer_cli.config.renamed.RenamedKeysWarning")
def test_both_names_are_one_key_written_twice(tmp_path):
    file = write(tmp_path, "decoding:\n  size: 3\n  beam_size: 3\n")
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    assert str(raised.value) == (
        f"{file}:4: decoding.beam_size: is written twice, first at {file}:3"
    )


def test_current_names_are_dumped(tmp_path):
    with pytest.warns(RenamedKeysWarning):
        config = load_config(write(tmp_path, OLD))
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    assert load_config(file) == config


def test_stored_settings_of_former_names_are_those_of_current_ones(tmp_path):
    stored = {
        "seed": "1",
        "model.tie": "output",
        "model.latent.dim": "8",
        "model.positions.kind": "relative",
        "model.positions.scaling.fast": "30.0",
        "training.optimizer.betas.0": "0.9",
        "data.train.0.source": "/a",
        "tokenizer_fingerprint": "relative",
    }
    assert current_settings(stored) == {
        "seed": "1",
        "model.tie_embeddings": "output",
        "model.latent.kv_lora_rank": "8",
        "model.positions.kind": "t5",
        "model.positions.scaling.beta_fast": "30.0",
        "training.optimizer.betas.0": "0.9",
        "data.train.0.source": "/a",
        "tokenizer_fingerprint": "relative",
    }
    now = {key: str(value) for key, value in leaves(load_config(write(tmp_path, NEW)))}
    assert current_settings(now) == now


def test_stored_hashes_have_former_names():
    assert former_repr(BeamConfig(beam_size=3, no_repeat_ngram_size=2)) == (
        "BeamConfig(max_length=256, max_length_ratio=None, min_length=1, min_length_ratio=0.0, "
        "repetition_penalty=1.0, frequency_penalty=0.0, no_repeat_ngram=2, kind='beam', size=3, "
        "length_penalty=1.0, patience=1.0, coverage_penalty=0.0, groups=1, diversity=0.5)"
    )


def sections(hints: list[Any]) -> Iterator[type]:
    """Yield the dataclasses of the schema."""
    for hint in hints:
        if dataclasses.is_dataclass(hint):
            yield hint
            yield from sections(list(annotations(hint).values()))
        else:
            yield from sections(list(getattr(hint, "__args__", ())))


def test_no_former_name_hides_a_key():
    formers = [
        (section, former.key)
        for section in sections([Config])
        for hint in annotations(section).values()
        for former in _formers(hint)
        if former.key is not None
    ]
    assert len(set(formers)) == 21
    for section, name in formers:
        assert name not in annotations(section)
        assert _enter([section], name)[0] in annotations(section)


def test_a_key_that_is_unknown_stays():
    assert current_path("decoding.sizze") == "decoding.sizze"
    assert current_path("size") == "size"
    assert current_path("") == ""


def test_the_command_line_prints_one_line(tmp_path):
    write(tmp_path, "decoding: {size: 3}\n")
    done = subprocess.run(
        [sys.executable, "-m", "tformer_cli", "config", "show", "x.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "x.yaml: uses renamed keys; write decoding.beam_size for size\n"
