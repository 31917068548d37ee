"""Runs that go together as an ensemble, and those that do not."""

from pathlib import Path

import pytest

from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, FilterConfig, ParallelText, TrainingText
from tformer_cli.config.schema.model import EncoderDecoderConfig, PositionsConfig
from tformer_cli.config.schema.positions import LearnedPositions, SinusoidalPositions
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.errors import CheckpointError
from tformer_cli.model.build import build_model
from tformer_cli.storage import trained_model as room
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_ensemble
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
    """Return a function that loads an ensemble of models in the place of runs."""

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
        "runs/b: has learnt fewer positions than runs/a has; got 10; name it first"
    )
    assert len(load(few, trained(positions=first))) == 2
