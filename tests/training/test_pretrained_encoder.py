"""A translation model that begins with an encoder that has learnt from text alone."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import CONFIG, MASKED, write_toy

from tformer_cli.config.load import load_config
from tformer_cli.errors import CheckpointError, ConfigError
from tformer_cli.model.encoder_decoder import EncoderDecoder
from tformer_cli.storage.run_directory import MODEL_FILE, RunDirectory
from tformer_cli.storage.trained_model import load_trained_model
from tformer_cli.text.tokenizer import Tokenizers, load_tokenizers
from tformer_cli.training.preparation import init_model
from tformer_cli.training.pretrained import PretrainedRun
from tformer_cli.training.trainer import train

SHORT = ("training.max_steps=8", "training.validate_every=8")


@pytest.fixture
def masked(masked_run: Path) -> RunDirectory:
    return RunDirectory(masked_run)


@pytest.fixture
def translation(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "pairs", config=CONFIG)


def trained(config_file: Path, folder: Path, *overrides: str) -> RunDirectory:
    run = RunDirectory(folder)
    train(load_config(config_file, overrides), run, device=torch.device("cpu"))
    return run


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return load_file(run.pointed("last") / MODEL_FILE)


def begun(
    translation: Path, masked: RunDirectory, *overrides: str
) -> tuple[EncoderDecoder, EncoderDecoder, Tokenizers, list[str]]:
    """Return a model that begins with a run, and without it, its tokenizers and what was said."""
    setting = f"training.init_from={masked.path}"
    config = load_config(translation, [setting, *overrides])
    pretrained = PretrainedRun.of(config, RunDirectory(translation.parent / "run"))
    said: list[str] = []
    tokenizers = pretrained.tokenizers(config, said.append)
    model, without = (init_model(config, tokenizers) for _ in range(2))
    pretrained.load_into(model, config, said.append)
    return model, without, tokenizers, said


@pytest.mark.parametrize(
    ("overrides", "anew"),
    [
        ((), "decoder.layers, decoder.norm"),
        (("model.tie_embeddings=output",), "decoder.embeddings, decoder.layers, decoder.norm"),
        (
            ("model.tie_embeddings=none",),
            "decoder.embeddings, decoder.layers, decoder.norm, output",
        ),
    ],
)
def test_a_translation_model_takes_over_the_encoder_to_the_bit(
    translation, masked, overrides, anew
):
    model, without, tokenizers, said = begun(translation, masked, *overrides)
    taken = {
        name: weight for name, weight in weights(masked).items() if name.startswith("encoder.")
    }
    assert taken.keys() == {f"encoder.{name}" for name, _ in model.encoder.named_parameters()}
    for name, weight in model.named_parameters():
        expected = taken.get(name, without.state_dict()[name])
        assert torch.equal(weight, expected), name
    shared = model.decoder.embeddings.tokens.weight is model.encoder.embeddings.tokens.weight
    assert shared == (not overrides)
    assert tokenizers.fingerprint == load_tokenizers(masked.tokenizer).fingerprint
    num_taken = sum(weight.numel() for weight in taken.values())
    assert said == [
        f"beginning with the encoder of {masked.pointed('last')}: {num_taken:,} of "
        f"{model.num_parameters():,} weights; {anew} begin anew"
    ]


def test_a_target_may_have_a_vocabulary_of_its_own(translation, masked):
    separate = ("tokenizer.shared=false", "model.tie_embeddings=output")
    model, _, tokenizers, said = begun(translation, masked, *separate)
    assert said[0] == "building the vocabulary of the target"
    known = load_tokenizers(masked.tokenizer)
    assert tokenizers.source.content == known.source.content
    assert tokenizers.target.decode(tokenizers.target.encode("FED CBA")) == "FED CBA"
    assert not tokenizers.shared
    taken = weights(masked)["encoder.embeddings.tokens.weight"]
    assert torch.equal(model.encoder.embeddings.tokens.weight, taken)


def test_a_translation_begins_with_it(translation, masked, tmp_path, capsys):
    setting = f"training.init_from={masked.path}"
    run = trained(translation, tmp_path / "run", *SHORT, setting)
    assert isinstance(load_trained_model(run).model, EncoderDecoder)
    assert f"beginning with the encoder of {masked.pointed('last')}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "complaints"),
    [
        (("model.dim=16",), ["model.dim: must be 32, as in the encoder of {run}; got 16"]),
        (
            ("model.num_encoder_layers=3", "model.norm=rms"),
            [
                "model.norm: must be layer, as in the encoder of {run}; got rms",
                "model.num_encoder_layers: must be 1, as in the encoder of {run}; got 3",
            ],
        ),
        (
            ("model.positions={kind: learned, max_length: 300}",),
            [
                'model.positions: must be {{"kind": "sinusoidal"}}, as in the encoder of {run}; '
                'got {{"kind": "learned", "max_length": 300}}'
            ],
        ),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused_by_its_keys(
    translation, masked, overrides, complaints
):
    with pytest.raises(ConfigError) as caught:
        begun(translation, masked, *overrides)
    wanted = [complaint.format(run=masked.path) for complaint in complaints]
    assert str(caught.value).split("\n") == wanted


def test_an_encoder_whose_residuals_weigh_by_depth_is_refused(translation, tmp_path):
    toy = write_toy(tmp_path / "data", config=MASKED)
    deep = trained(toy, tmp_path / "deep", *SHORT, "model.norm_position=deep")
    with pytest.raises(ConfigError) as caught:
        begun(translation, deep, "model.norm_position=deep")
    assert str(caught.value) == (
        f"model.norm_position: must not be deep with the encoder of {deep.path}, "
        "whose residuals weigh otherwise; got deep"
    )


def test_another_tokenizer_is_refused(translation, masked):
    with pytest.raises(CheckpointError) as caught:
        begun(translation, masked, "tokenizer={kind: char, min_frequency: 2}")
    assert str(caught.value) == (
        f"{masked.path}: was trained with another tokenizer than the config asks for; "
        f"take over `tokenizer` from {masked.config_file}"
    )
