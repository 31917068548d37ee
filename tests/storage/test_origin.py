"""A run whose config or tokenizer was changed behind its back does not translate otherwise."""

import shutil
from dataclasses import replace

import pytest
from saving import forget_origin, message

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.positions import LinearScaling, RotaryPositions
from tformer_cli.errors import CheckpointError
from tformer_cli.storage.origin import check_settings, model_settings
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import load_trained_network


@pytest.fixture
def run(toy_run, tmp_path):
    shutil.copytree(toy_run, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def edit(file, old, new):
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "key", "was", "got"),
    [
        ("num_heads: 2", "num_heads: 4", "model.num_heads", "2", "4"),
        ("activation: relu", "activation: gelu", "model.activation", "relu", "gelu"),
        ("kind: sinusoidal", "kind: none", "model.positions.kind", "sinusoidal", "none"),
        ("sliding_window: null", "sliding_window: 3", "model.sliding_window", "None", "3"),
        ("lowercase: none", "lowercase: source", "tokenizer.lowercase", "none", "source"),
    ],
)
def test_another_function_than_the_trained_one_is_refused(run, old, new, key, was, got):
    edit(run.config_file, old, new)
    assert message(load_trained_network, run) == (
        f"{run.config_file}: {key} is not what the model was trained with ({was}); got {got}; "
        "restore the config.yaml that the run was trained with"
    )


def test_no_command_takes_an_edited_config(run, tformer, tmp_path):
    edit(run.config_file, "num_heads: 2", "num_heads: 4")
    text, translation = tmp_path / "text", tmp_path / "translation"
    text.write_text("abc\n", encoding="utf-8")
    translation.write_text("CBA\n", encoding="utf-8")
    for command in (
        ("translate", run.path),
        ("eval", run.path),
        ("score", run.path, "--source", text, "--target", translation),
        ("export", run.path, tmp_path / "out", "--format", "safetensors"),
        ("heatmap", run.path, "abc", "--output", tmp_path / "a.html"),
        ("average", run.path),
    ):
        result = tformer(*command, stdin="abc\n")
        assert result.exit_code == 2, command
        assert "model.num_heads is not what the model was trained with (2); got 4" in result.stderr
    assert not (tmp_path / "out").exists()


def test_other_keys_may_change(run):
    before = load_trained_network(run)
    edit(run.config_file, "max_length: 20", "max_length: 30")
    edit(run.config_file, "target_language: target", "target_language: de")
    assert load_trained_network(run).tokenizers.fingerprint == before.tokenizers.fingerprint


def test_a_section_that_takes_the_place_of_null_is_a_change(run, tmp_path):
    config = load_config(run.config_file)
    plain, scaled = (
        replace(config, model=replace(config.model, positions=RotaryPositions(scaling=scaling)))
        for scaling in (None, LinearScaling(factor=2.0))
    )
    for then, now in ((plain, scaled), (scaled, plain)):
        with pytest.raises(CheckpointError, match=r"model\.positions\.scaling"):
            check_settings(model_settings(then), now, run.config_file)
        check_settings(model_settings(then), then, run.config_file)


def test_a_key_that_a_program_does_not_know_is_not_compared(run):
    config = load_config(run.config_file)
    known = model_settings(config)
    del known["model.qk_norm"]
    check_settings(known | {"model.of_tomorrow": "1"}, config, run.config_file)


@pytest.mark.parametrize("name", ["shared.json", "tokenizer.json"])
def test_other_tokenizers_are_refused(run, name):
    file = run.tokenizer / name
    if name == "tokenizer.json":
        edit(file, '"lowercase": false', '"lowercase": true')
    else:
        edit(file, '"a"', '"\u00e1"')
    assert message(load_trained_network, run) == (
        f"{run.tokenizer}: does not hold the tokenizers that the model was trained with; "
        "restore the folder, or train again"
    )


def test_a_run_of_an_older_program_is_loaded_as_before(run):
    forget_origin(run)
    edit(run.config_file, "activation: relu", "activation: gelu")
    edit(run.tokenizer / "tokenizer.json", '"lowercase": false', '"lowercase": true')
    assert load_trained_network(run).config.model.activation == "gelu"
