"""Trained models: ensembles, edited runs, fingerprints."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from saving import message, remove_settings
from torch.utils._python_dispatch import TorchDispatchMode

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, FilterConfig
from tformer_cli.config.schema.model import (
    EncoderDecoderConfig,
    LearnedPositions,
    LinearScaling,
    PositionsConfig,
    RotaryPositions,
    SinusoidalPositions,
)
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.model.build import build_model, build_network
from tformer_cli.storage import trained_model as room
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import (
    TrainedModel,
    check_settings,
    find_model,
    load_ensemble,
    load_trained_network,
    settings_of_model,
)
from tformer_cli.text.tokenizer import build_tokenizers

TEXT = ParallelText(source=Path("a"), target=Path("b"))


def trained(letters: str = "abc", positions: PositionsConfig | None = None) -> TrainedModel:
    tokenizers = build_tokenizers(CharConfig(), lambda: [(letters, letters)] * 3, seed=1)
    model = EncoderDecoderConfig(
        dim=4,
        num_heads=1,
        feedforward_dim=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        positions=positions or SinusoidalPositions(),
    )
    data = DataConfig(
        source_language="en",
        target_language="de",
        train=(TrainingText(source=Path("a"), target=Path("b")),),
        valid=TEXT,
        filters=FilterConfig(max_length=6),
    )
    size = tokenizers.source.size
    built = build_model(model, source_size=size, target_size=size, seed=1)
    return TrainedModel(Config(data=data, model=model), tokenizers, built, step=5)


@pytest.fixture
def load(monkeypatch):
    """Return a function that loads an ensemble of models instead of runs."""

    def function(*models: TrainedModel) -> list[TrainedModel]:
        runs = {Path(f"runs/{name}"): model for name, model in zip("abc", models, strict=False)}
        monkeypatch.setattr(room, "load_trained_model", lambda run, name: runs[run.path])
        return load_ensemble([RunDirectory(path) for path in runs])

    return function


def test_runs_of_one_vocabulary_go_together_in_their_order(load):
    models = [trained(), trained(), trained()]
    assert load(*models) == models
    assert load(models[0]) == models[:1]


def test_a_run_of_another_vocabulary_is_refused(load):
    with pytest.raises(CheckpointError) as raised:
        load(trained(), trained(), trained("abd"))
    assert str(raised.value) == (
        "runs/c: has other tokenizers than runs/a; an ensemble has one vocabulary: name runs of "
        "the same text, tokenizer section and seed, or one that continues from the other"
    )


@pytest.mark.parametrize("first", [None, LearnedPositions(max_length=12)])
def test_a_run_with_fewer_positions_comes_first(load, first):
    few = trained(positions=LearnedPositions(max_length=10))
    with pytest.raises(CheckpointError) as raised:
        load(trained(positions=first), few)
    assert str(raised.value) == (
        "runs/b: has learned fewer positions than runs/a has (10); name it first"
    )
    assert len(load(few, trained(positions=first))) == 2


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
        (
            *("frequencies: paper", "frequencies: tensor2tensor"),
            *("model.positions.frequencies", "paper", "tensor2tensor"),
        ),
        ("sliding_window: null", "sliding_window: 3", "model.sliding_window", "None", "3"),
        ("lowercase: none", "lowercase: source", "tokenizer.lowercase", "none", "source"),
    ],
)
def test_another_function_than_the_trained_one_is_refused(run, old, new, key, was, got):
    edit(run.config_file, old, new)
    assert message(load_trained_network, run) == (
        f"{run.config_file}: {key} is not {was}, as in training ({got}); "
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
        assert "model.num_heads is not 2, as in training (4)" in result.stderr
    assert not (tmp_path / "out").exists()


def test_other_keys_may_change(run):
    before = load_trained_network(run)
    edit(run.config_file, "max_length: 20", "max_length: 30")
    edit(run.config_file, "target_language: target", "target_language: de")
    assert load_trained_network(run).tokenizers.fingerprint == before.tokenizers.fingerprint


def test_a_section_that_replaces_null_is_a_change(run, tmp_path):
    config = load_config(run.config_file)
    plain, scaled = (
        replace(config, model=replace(config.model, positions=RotaryPositions(scaling=scaling)))
        for scaling in (None, LinearScaling(factor=2.0))
    )
    for then, now in ((plain, scaled), (scaled, plain)):
        with pytest.raises(CheckpointError, match=r"model\.positions\.scaling"):
            check_settings(settings_of_model(then), now, run.config_file)
        check_settings(settings_of_model(then), then, run.config_file)


def test_a_key_that_a_program_does_not_know_is_not_compared(run):
    config = load_config(run.config_file)
    known = settings_of_model(config)
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
    remove_settings(run)
    edit(run.config_file, "activation: relu", "activation: gelu")
    edit(run.tokenizer / "tokenizer.json", '"lowercase": false', '"lowercase": true')
    assert load_trained_network(run).config.model.activation == "gelu"


def test_the_fingerprint_is_of_all_that_translates_and_of_nothing_else(toy_run, tmp_path):
    run = RunDirectory(toy_run)
    files, plain = find_model(run), RunDirectory(tmp_path / "plain")
    assert files.fingerprint == load_trained_network(run).files.fingerprint
    config = files.config
    searching = replace(config, decoding=replace(config.decoding, max_length=7), seed=9)
    assert replace(files, config=searching).fingerprint == files.fingerprint
    fingerprints = {files.fingerprint}
    # The language of the source decides where its terms and its words are.
    for changes in (
        {"source_language": "ja"},
        {"target_language": "ja"},
        {"prefixes": {"target": "to target: "}},
        {"prefixes": {"target": "into target: "}},
    ):
        other = replace(config, data=replace(config.data, **changes))
        assert replace(files, config=other).fingerprint not in fingerprints
        fingerprints.add(replace(files, config=other).fingerprint)
    assert find_model(run, "step-000144").fingerprint != files.fingerprint
    # The same weights in a plain folder, and others.
    plain.path.mkdir()
    shutil.copytree(run.tokenizer, plain.tokenizer)
    shutil.copy(run.config_file, plain.config_file)
    weights = load_file(files.directory / "model.safetensors")
    save_file(weights, plain.path / "model.safetensors")
    fingerprint = find_model(plain).fingerprint
    weight = next(iter(weights.values()))
    weight.view(-1)[-1] = torch.nextafter(weight.view(-1)[-1], torch.tensor(9.0))
    save_file(weights, plain.path / "model.safetensors")
    assert find_model(plain).fingerprint != fingerprint


def test_weights_that_the_checksums_do_not_name_have_no_fingerprint(run, tformer):
    files = find_model(run)
    edit(files.directory / "SHA256SUMS", "model.safetensors", "model.safetensorz")
    with pytest.raises(CheckpointError) as caught:
        _ = files.fingerprint
    assert str(caught.value) == (
        f"{files.directory}: is incomplete: SHA256SUMS is missing or damaged; "
        "restore the file, or use another checkpoint"
    )
    result = tformer("translate", run.path, "abc")
    assert result.exit_code == 2
    assert "is damaged: model.safetensors does not match its checksum" in result.stderr


class Recorder(TorchDispatchMode):
    """The names of the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_network_is_loaded_without_drawing_weights(toy_run):
    run = RunDirectory(toy_run)
    with Recorder() as recorder:
        trained = load_trained_network(run)
    assert not [name for name in recorder.names if "uniform" in name or "normal" in name]
    stored = load_file(run.pointed("best") / "model.safetensors")
    weights = dict(trained.model.named_parameters())
    assert weights.keys() == stored.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, stored[name]), name
    built = build_network(
        trained.config.model,
        source_size=trained.tokenizers.source.size,
        target_size=trained.tokenizers.target.size,
        seed=1,
    )
    buffers = dict(built.named_buffers())
    assert buffers.keys() == dict(trained.model.named_buffers()).keys() != set()
    for name, buffer in trained.model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
