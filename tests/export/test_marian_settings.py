"""What generation_config.json says of the search, and what it does not."""

import json
from pathlib import Path

import pytest

from tformer_cli.config.schema.decoding import BeamConfig, DecodingConfig, GreedyConfig
from tformer_cli.errors import ConfigError, TformerError
from tformer_cli.export.settings import read_search


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "generation_config.json"


def read(file: Path, **content: object) -> DecodingConfig:
    file.write_text(json.dumps(content), encoding="utf-8")
    return read_search(file)


def refused(file: Path, **content: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(file, **content)
    return [str(problem) for problem in caught.value.problems]


def test_without_the_file_the_search_is_our_own(file):
    assert read_search(file) == BeamConfig()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, BeamConfig()),
        ({"num_beams": 4, "max_length": 512}, BeamConfig(beam_size=4, max_length=511)),
        ({"num_beams": 6, "length_penalty": 0}, BeamConfig(beam_size=6, length_penalty=0.0)),
        ({"length_penalty": 0.6}, BeamConfig(length_penalty=0.6)),
        ({"num_beams": 1}, GreedyConfig()),
        ({"num_beams": 1, "max_length": 20}, GreedyConfig(max_length=19)),
        ({"num_beams": 1, "length_penalty": 2.0}, GreedyConfig()),
        ({"max_new_tokens": 20}, BeamConfig(max_length=20)),
        ({"max_new_tokens": 20, "max_length": 512}, BeamConfig(max_length=20)),
        ({"max_length": 100_000}, BeamConfig(max_length=99_999)),
        ({"no_repeat_ngram_size": 3}, BeamConfig(no_repeat_ngram_size=3)),
        ({"num_beams": 1, "no_repeat_ngram_size": 0}, GreedyConfig()),
        ({"num_beams": None, "max_length": None, "length_penalty": None}, BeamConfig()),
    ],
)
def test_keys_that_are_there_are_taken_over(file, content, expected):
    assert read(file, **content) == expected


def test_keys_that_no_one_has_chosen_for_the_search_are_not_read(file):
    others = {"do_sample": True, "forced_eos_token_id": 0, "bad_words_ids": [[7]], "x": {"y": 1}}
    assert read(file, **others) == BeamConfig()


def test_values_of_another_kind_are_refused_all_at_once(file):
    assert refused(
        file, max_new_tokens=2.5, num_beams="4", length_penalty=float("nan"), do_sample=3
    ) == [
        f"{file}: max_new_tokens: must be a whole number (2.5)",
        f'{file}: num_beams: must be a whole number ("4")',
        f"{file}: length_penalty: must be a number (NaN)",
    ]


@pytest.mark.parametrize("number", [float("inf"), -float("inf"), 10**400, True])
def test_a_length_penalty_is_a_finite_number(file, number):
    assert refused(file, length_penalty=number) == [
        f"{file}: length_penalty: must be a number ({json.dumps(number)})"
    ]


REMEDY = "correct generation_config.json, or remove it to have a search of ours"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"num_beams": 0}, "decoding.beam_size: must be at least 1 (0)"),
        ({"num_beams": 2000}, "decoding.beam_size: must be at most 1000 (2000)"),
        ({"length_penalty": -1}, "decoding.length_penalty: must be at least 0 (-1.0)"),
        ({"max_new_tokens": 0}, "decoding.max_length: must be at least 1 (0)"),
        (
            {"no_repeat_ngram_size": -1},
            "decoding.no_repeat_ngram_size: must be at least 0 (-1)",
        ),
        ({"max_length": 1}, "decoding.max_length: must be at least 1 (0)"),
    ],
)
def test_what_no_search_of_ours_is_is_refused(file, content, message):
    assert refused(file, **content) == [f"{file}: {message}; {REMEDY}"]


def test_a_file_that_is_no_json_is_named(file):
    file.write_text("num_beams: 4")
    with pytest.raises(TformerError) as caught:
        read_search(file)
    assert str(caught.value).startswith(f"{file}: is not JSON (")
