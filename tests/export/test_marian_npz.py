"""A model of ours in Marian NMT's own files, and the way back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_marian import CASES, LETTERS, LINES, PLAIN, token_log_probs, trained, translations

from tformer_cli.config.schema.decoding import BeamConfig
from tformer_cli.config.schema.model import EncoderDecoderConfig, SinusoidalPositions
from tformer_cli.errors import CheckpointError, ConfigError
from tformer_cli.export.marian_npz import MarianNpzFormat, read_marian_npz
from tformer_cli.export.marian_npz_settings import read_vocabulary, vocabulary_text
from tformer_cli.storage.trained_model import TrainedModel


def of_marian(config: EncoderDecoderConfig, activation: str = "relu") -> EncoderDecoderConfig:
    positions = SinusoidalPositions(frequencies="tensor2tensor")
    return replace(config, norm_epsilon=1e-6, positions=positions, activation=activation)


def model_of(name: str, activation: str = "relu", *, bias: bool = True) -> TrainedModel:
    config, tokenizer = CASES[name]
    return trained(replace(of_marian(config, activation), bias=bias), tokenizer)


@pytest.fixture
def folder(tmp_path) -> Path:
    MarianNpzFormat().save(model_of("all"), tmp_path / "npz")
    return tmp_path / "npz"


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "model.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("name", CASES)
def test_the_way_back_has_the_same_probabilities_and_the_same_file(name, activation, tmp_path):
    ours = model_of(name, activation, bias=name != "output")
    MarianNpzFormat().save(ours, tmp_path / "npz")
    again = read_marian_npz(tmp_path / "npz")
    for found, expected in zip(token_log_probs(again), token_log_probs(ours), strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
    assert translations(again) == translations(ours)
    # Rows of tokens that no text has are zero from then on.
    MarianNpzFormat().save(again, tmp_path / "second")
    MarianNpzFormat().save(read_marian_npz(tmp_path / "second"), tmp_path / "third")
    second, third = arrays_of(tmp_path / "second"), arrays_of(tmp_path / "third")
    assert second.keys() == third.keys() == arrays_of(tmp_path / "npz").keys()
    assert all(np.array_equal(second[key], third[key]) for key in second)


def test_marian_translates_alike(tmp_path):
    pymarian = pytest.importorskip("pymarian", reason="pymarian is not installed")
    equal = 0
    for name in ("all", "output", "none", "apart"):
        ours = model_of(name)
        MarianNpzFormat().save(ours, tmp_path / name)
        theirs = pymarian.Translator(
            config=str(tmp_path / name / "decoder.yml"), beam_size=1, quiet=True, cpu_threads=1
        )
        for line, text in zip(LINES, translations(ours), strict=True):
            found = theirs.translate(line)
            # It may translate by nothing, and has another limit of the length.
            if found:
                size = min(len(found), len(text.strip()))
                assert found[:size] == text.strip()[:size]
                equal += size > 1
    assert equal > 0


def test_settings_say_what_the_network_is_and_how_it_searches(tmp_path):
    beam = BeamConfig(beam_size=4, length_penalty=0.6)
    model = model_of("none")
    model = replace(model, config=replace(model.config, decoding=beam))
    MarianNpzFormat().save(model, tmp_path / "npz")
    again = read_marian_npz(tmp_path / "npz", source_language="en", target_language="de")
    data, search = again.config.data, again.config.decoding
    assert (data.source_language, data.target_language) == ("en", "de")
    assert isinstance(search, BeamConfig)
    assert (search.beam_size, search.length_penalty) == (4, 0.6)
    changed = {"bias": True, "output_bias": True}
    assert again.config.model == replace(
        model.config.model, **changed, dropout=again.config.model.dropout
    )


def test_another_network_is_refused_by_its_keys(tmp_path):
    model = trained(replace(PLAIN, norm_position="pre", activation="gelu"), LETTERS)
    with pytest.raises(ConfigError) as caught:
        MarianNpzFormat().save(model, tmp_path / "npz")
    for key in ("norm_position", "norm_epsilon", "positions.frequencies", "activation"):
        assert f"model.{key}: " in str(caught.value)
    assert not (tmp_path / "npz").exists()


def test_nothing_is_unpickled_and_damage_is_named(folder):
    file = folder / "model.npz"
    arrays, whole = arrays_of(folder), file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="is damaged or cut short"):
        read_marian_npz(folder)
    np.savez(file, **{**arrays, "Wemb": np.array([object()])})
    with pytest.raises(CheckpointError, match="is damaged or cut short"):
        read_marian_npz(folder)
    np.savez(file, **{name: x for name, x in arrays.items() if not name.startswith("special:")})
    with pytest.raises(CheckpointError, match="has no special:model"):
        read_marian_npz(folder)
    np.savez(file, **{name: x for name, x in arrays.items() if name != "Wemb"})
    with pytest.raises(CheckpointError, match="differs in 1 of its weights"):
        read_marian_npz(folder)
    np.savez(file, **{**arrays, "Wemb": np.full_like(arrays["Wemb"], np.nan)})
    with pytest.raises(CheckpointError, match="Wemb"):
        read_marian_npz(folder)


def test_options_of_another_network_are_all_named(folder):
    arrays = arrays_of(folder)
    text = arrays["special:model.yml"].tobytes().rstrip(b"\0").decode()
    text = text.replace("type: transformer\n", "type: s2s\n").replace("dan", "da")
    np.savez(
        folder / "model.npz",
        **{**arrays, "special:model.yml": np.frombuffer(text.encode(), np.int8)},
    )
    with pytest.raises(ConfigError) as caught:
        read_marian_npz(folder)
    assert 'type: must be "transformer" ("s2s")' in str(caught.value)
    assert 'transformer-postprocess: must be "dan" ("da")' in str(caught.value)


def test_files_of_decoder_yml_are_those_of_its_folder(folder):
    (folder / "vocab.spm").rename(folder / "other.spm")
    with pytest.raises(CheckpointError, match="no such file"):
        read_marian_npz(folder)
    settings = (folder / "decoder.yml").read_text()
    (folder / "decoder.yml").write_text(settings.replace("model.npz", "/etc/model.npz"))
    with pytest.raises(ConfigError, match="must be a list of files in the folder, 1 in number"):
        read_marian_npz(folder)
    (folder / "decoder.yml").write_text("- a\n")
    with pytest.raises(CheckpointError, match="is not a YAML mapping"):
        read_marian_npz(folder)


@pytest.mark.parametrize(
    "tokens", [["</s>", "<unk>", "a"], ["'", '"', "\\", ": ", "#", "no", "1", "\x85", "-", "? x"]]
)
def test_vocabularies_are_read_as_they_are_written(tokens, tmp_path):
    file = tmp_path / "vocab.yml"
    file.write_text(vocabulary_text(tokens), encoding="utf-8")
    assert read_vocabulary(file) == tokens


def test_a_vocabulary_with_holes_is_refused(tmp_path):
    file = tmp_path / "vocab.yml"
    file.write_text('"</s>": 0\n"a": 2\n')
    with pytest.raises(CheckpointError, match="must have each id from 0 on once"):
        read_vocabulary(file)
    file.write_text("a\n")
    with pytest.raises(CheckpointError, match="is not a vocabulary"):
        read_vocabulary(file)


def test_a_training_starts_from_it(folder):
    """Gradients reach all weights: it is a model like any other."""
    model = read_marian_npz(folder).model.train()
    source = torch.tensor([[5, 6, 3]])
    mask = torch.ones_like(source, dtype=torch.bool)
    model.hidden_states(source, mask, source, torch.arange(3)).sum().backward()
    assert all(weight.grad is not None for weight in model.encoder.parameters())


def test_a_norm_of_the_embeddings_is_refused():
    ours = model_of("all")
    model = replace(ours.config.model, embedding_norm=True)
    problems = MarianNpzFormat().unsupported(
        replace(ours, config=replace(ours.config, model=model))
    )
    assert [problem.where for problem in problems] == ["model.embedding_norm"]
