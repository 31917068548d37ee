"""A plain folder: the weights by our names, and what is read of it again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from exportable import BASE, LINES, MEMBERS, char_tokenizers, content_of, exported, lively, trained
from family import translating
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tformer_cli.config.load import load_config
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig, FilterConfig
from tformer_cli.config.schema.decoding import GreedyConfig
from tformer_cli.config.schema.model import (
    AlibiPositions,
    DecoderOnlyConfig,
    LatentConfig,
    RotaryPositions,
)
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.errors import CheckpointError, ConfigError, ExportError, TformerError
from tformer_cli.export.check import CheckText, check_export
from tformer_cli.export.format import beam_of
from tformer_cli.export.plain import PlainFormat, portable_config, read_plain_folder
from tformer_cli.model.build import build_model
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model
from tformer_cli.translate.translator import Translator

EXACT = PlainFormat()
STREAM = DecoderOnlyConfig(dim=24, num_heads=3, feedforward_dim=17, num_layers=2)
# Every kind of network, and some of what other programs do not know.
SOME_MEMBERS = {
    "sinusoidal": BASE,
    "not tied": MEMBERS["rotary"],
    "learned": MEMBERS["learned"],
    "deep": MEMBERS["deep-modern"],
    "latent": replace(
        BASE, positions=RotaryPositions(), latent=LatentConfig(kv_lora_rank=6, rope_head_dim=4)
    ),
    "alibi": replace(BASE, positions=AlibiPositions()),
    "stream": STREAM,
    "bidirectional": replace(STREAM, source_attention="bidirectional"),
}


def short(model: TrainedModel, *, shared: bool = True) -> TrainedModel:
    """With lengths in its config that the learned positions of every member have."""
    config = model.config
    data = replace(config.data, filters=FilterConfig(max_length=14))
    training = replace(config.training, validation_decoding=GreedyConfig(max_length=15))
    tokenizer = CharConfig(shared=shared)
    return replace(model, config=replace(config, data=data, training=training, tokenizer=tokenizer))


@pytest.fixture
def model() -> TrainedModel:
    return short(lively(BASE))


@pytest.fixture
def folder(model, tmp_path) -> Path:
    EXACT.write(model, tmp_path)
    return tmp_path


def weights_of(trained_model: TrainedModel) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in trained_model.model.named_parameters()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@settings(max_examples=6)
@given(config=translating)
def test_what_is_read_is_what_was_written(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("member")
    tokenizers = char_tokenizers(
        shared=config.kind == "decoder_only" or config.tie_embeddings == "all"
    )
    sizes = {"source_size": tokenizers.source.size, "target_size": tokenizers.target.size}
    network = build_model(config, **sizes, seed=7)
    model = short(trained(network, tokenizers, config), shared=tokenizers.shared)
    EXACT.write(model, folder)
    found = read_plain_folder(folder)
    assert content_of(found) == content_of(model)
    assert found.config == portable_config(model.config)
    assert not found.model.training
    assert equal(load_file(folder / "model.safetensors"), weights_of(model))


@pytest.mark.parametrize("name", SOME_MEMBERS)
def test_members_of_every_kind_pass_their_check(name, tmp_path):
    config = SOME_MEMBERS[name]
    model = short(lively(config), shared=config.tie_embeddings != "none")
    text = CheckText.of(LINES, model.tokenizers, name="valid.en", max_length=20)
    with exported(model, EXACT, tmp_path / "plain", text) as (_, (greedy, beam)):
        assert not greedy.differences
        assert not beam.differences
        assert greedy.num_equal == greedy.num_lines == len(text.lines)
        assert beam.num_equal == beam.num_lines
        assert beam.search == beam_of(model.config.decoding)
    assert [file.name for file in tmp_path.iterdir()] == ["plain"]


def test_the_folder_holds_what_a_run_does_and_no_more(folder):
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))
    assert names == [
        "config.yaml",
        "model.safetensors",
        "tokenizer",
        "tokenizer/shared.json",
        "tokenizer/tokenizer.json",
    ]


def test_whoever_may_read_the_config_may_read_the_weights(folder):
    modes = [(folder / name).stat().st_mode for name in ("config.yaml", "model.safetensors")]
    assert modes[0] == modes[1]


def test_a_shared_weight_is_there_once_and_the_file_is_of_torch(model, folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        (notes,) = map(json.loads, file.metadata().values())
        assert notes["tokenizer_fingerprint"] == model.tokenizers.fingerprint
        assert notes["model.num_decoder_layers"] == "2"
        names = set(file.keys())
    assert "encoder.embeddings.tokens.weight" in names
    assert not names & {"decoder.embeddings.tokens.weight", "output.weight"}
    num_bytes = (folder / "model.safetensors").stat().st_size
    assert 0 < num_bytes - 4 * model.model.num_parameters() < 20_000


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_rounds_each_weight_to_the_nearest(model, tmp_path, precision):
    form = PlainFormat(precision)
    form.write(model, tmp_path)
    dtype = getattr(torch, precision)
    rounded = {name: weight.to(dtype) for name, weight in weights_of(model).items()}
    stored = load_file(tmp_path / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {dtype}
    assert equal(stored, rounded)
    found = weights_of(read_plain_folder(tmp_path))
    assert equal(found, {name: weight.float() for name, weight in rounded.items()})
    assert not form.is_exact


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_is_compared_but_may_differ(model, tmp_path, precision):
    text = CheckText.of(LINES, model.tokenizers, name="valid.en", max_length=20)
    with exported(model, PlainFormat(precision), tmp_path / "x", text) as (_, comparisons):
        assert [comparison.num_lines for comparison in comparisons] == [len(text.lines)] * 2
        assert any(comparison.differences for comparison in comparisons)
    assert (tmp_path / "x" / "model.safetensors").is_file()


def test_one_wrong_number_fails_the_check(model, folder):
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["decoder.norm.bias"][3] += 0.1
    save_file(weights, file)
    text = CheckText.of(LINES, model.tokenizers, name="valid.en", max_length=20)
    with pytest.raises(ExportError) as raised:
        check_export(model, EXACT, folder, text)
    start = "valid.en:1: tformer has another translation, or another score for it ('"
    assert str(raised.value).startswith(start)


def test_a_weight_beyond_half_precision_is_refused(model):
    with torch.no_grad():
        model.model.encoder.norm.weight[2] = 70_000
    assert [str(problem) for problem in PlainFormat("float16").unsupported(model)] == [
        "`quantization`: overflows for a weight of the model "
        "(float16 for encoder.norm.weight); use bfloat16"
    ]
    for precision in ("bfloat16", "float32"):
        assert list(PlainFormat(precision).unsupported(model)) == []


def test_the_config_names_files_and_no_places(model, folder):
    text = (folder / "config.yaml").read_text(encoding="utf-8")
    assert "secret" not in text
    data = yaml.safe_load(text)["data"]
    assert data["root"] is None
    train = {"source": "text.en", "target": "text.de", "weight": 1.0, "tags": []}
    assert data["train"] == [train]
    assert data["valid"] == {"source": "text.en", "target": "text.de"}
    assert load_config(folder / "config.yaml").data.valid.source == folder / "text.en"


def test_files_of_one_name_keep_what_tells_them_apart(model):
    data = model.config.data
    texts = [
        TrainingText(source=Path(f"/a/{name}/train.en"), target=Path(f"/a/{name}/train.de"))
        for name in ("news", "talks")
    ]
    test = {"news": ParallelText(source=Path("/b/c/news.en"), target=Path("/b/c/news.de"))}
    config = replace(model.config, data=replace(data, train=tuple(texts), test=test))
    found = portable_config(config).data
    assert [str(text.source) for text in found.train] == ["news/train.en", "talks/train.en"]
    assert str(found.test["news"].target) == "c/news.de"
    assert str(found.valid.source) == "secret/text.en"


parts = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4)


@settings(max_examples=40)
@given(paths=st.sets(parts.map(lambda names: Path("/", *names)), min_size=2, max_size=5))
def test_names_are_the_shortest_ends_that_differ(paths):
    files = sorted(paths)
    train = tuple(TrainingText(source=file, target=files[0]) for file in files)
    valid = ParallelText(source=files[0], target=files[0])
    found = portable_config(Config(data=DataConfig(train=train, valid=valid))).data
    names = [text.source for text in found.train]
    assert len(set(names)) == len(files)
    assert all(
        not name.is_absolute() and file.parts[-len(name.parts) :] == name.parts
        for name, file in zip(names, files, strict=True)
    )
    longest = max(len(name.parts) for name in names)
    if longest > 1:
        shorter = {file.relative_to("/").parts[-(longest - 1) :] for file in files}
        assert len(shorter) < len(files)


def test_what_the_training_began_with_is_left_out(model):
    training = replace(model.config.training, init_from=Path("/secret/run"))
    config = portable_config(replace(model.config, training=training))
    assert config.training == model.config.training


def test_a_plain_folder_is_loaded_as_a_run_is(model, folder):
    run, search = RunDirectory(folder), GreedyConfig(max_length=8)
    loaded, read = load_trained_model(run), read_plain_folder(folder)
    assert content_of(loaded) == content_of(read) == content_of(model)
    assert (loaded.step, loaded.max_source_sentences) == (0, read.max_source_sentences)
    ours = Translator.from_model(model.model, model.tokenizers, model.config, torch.device("cpu"))
    found = Translator.load(str(folder), device="cpu").translate(LINES, decoding=search)
    assert found == ours.translate(LINES, decoding=search)
    with pytest.raises(CheckpointError, match=r"\(step-000004\); leave `checkpoint` out"):
        load_trained_model(run, "step-000004")


def test_without_its_weights_a_plain_folder_is_told_from_a_run_without_a_checkpoint(model, folder):
    (folder / "model.safetensors").unlink()

    def refusal() -> str:
        with pytest.raises(CheckpointError) as refused:
            load_trained_model(RunDirectory(folder))
        return str(refused.value)

    what = f"{folder}: has no such checkpoint (best)"
    assert refusal() == f"{what}; restore model.safetensors, or export the model again"
    RunDirectory(folder).log_file.touch()
    assert refusal() == f"{what}; train it first"


def test_the_example_prints_the_best_of_the_beam(model, folder, monkeypatch, capsys):
    line = LINES[3]
    monkeypatch.chdir(folder)
    exec(EXACT.example(model, line), {})
    search = beam_of(model.config.decoding)
    translator = Translator.from_model(
        model.model, model.tokenizers, model.config, torch.device("cpu")
    )
    assert capsys.readouterr().out == f"{translator.translate([line], decoding=search)[0]}\n"
    assert EXACT.packages(model) == ["tformer"]
    assert EXACT.versions().keys() == {"safetensors"}


def test_languages_can_be_named(folder):
    found = read_plain_folder(folder, source_language="fr", target_language="ja").config.data
    assert (found.source_language, found.target_language) == ("fr", "ja")
    kept = read_plain_folder(folder).config.data
    assert (kept.source_language, kept.target_language) == ("en", "de")


def refused(folder: Path) -> list[str]:
    with pytest.raises(TformerError) as caught:
        read_plain_folder(folder)
    return [str(problem) for problem in caught.value.problems]


def changed(folder: Path, old: str, new: str) -> None:
    file = folder / "config.yaml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    assert refused(folder) == [
        f"{folder}/{name}: no such file; "
        "name a folder that `tformer export --format safetensors` has written"
    ]


def test_missing_tokenizers_are_named(folder):
    (folder / "tokenizer" / "shared.json").unlink()
    assert refused(folder) == [
        f"{folder}/tokenizer/shared.json: cannot be read (No such file or directory); "
        "restore the file, or train again"
    ]


def test_weights_that_are_cut_short_are_named(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    (message,) = refused(folder)
    assert message.startswith(f"{file}: is damaged or cut short (")


def test_a_pickle_is_not_read(folder):
    file = folder / "model.safetensors"
    # load_file maps the file that is about to be replaced.
    torch.save({name: weight.clone() for name, weight in load_file(file).items()}, file)
    (message,) = refused(folder)
    assert message.startswith(f"{file}: is damaged or cut short (")


def without_notes(folder: Path) -> None:
    """As the folder was written before its weights said what they were trained with."""
    file = folder / "model.safetensors"
    save_file({name: weight.clone() for name, weight in load_file(file).items()}, file)


def test_a_config_of_another_model_is_named(folder):
    changed(folder, "num_decoder_layers: 2", "num_decoder_layers: 1")
    (message,) = refused(folder)
    assert message == (
        f"{folder}/config.yaml: model.num_decoder_layers is not 2, as in training (1); "
        "restore the config.yaml that the run was trained with"
    )


def test_weights_of_another_model_are_named(folder):
    without_notes(folder)
    read_plain_folder(folder)
    changed(folder, "num_decoder_layers: 2", "num_decoder_layers: 1")
    (message,) = refused(folder)
    assert message == (
        f"{folder}/model.safetensors: differs in 26 of its weights from the model that "
        "config.yaml describes (decoder.layers.1.cross_attention.key.bias); "
        "restore the config.yaml that the run was trained with"
    )


def test_tokenizers_of_another_model_are_named(folder):
    file = folder / "tokenizer" / "shared.json"
    tokens = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps([*tokens[:-1], "\u00e1"]), encoding="utf-8")
    (message,) = refused(folder)
    assert message == (
        f"{folder}/tokenizer: does not hold the tokenizers that the model was trained with; "
        "restore the folder, or train again"
    )


def test_tokenizers_of_another_size_are_named(folder):
    without_notes(folder)
    file = folder / "tokenizer" / "shared.json"
    tokens = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(tokens[:-1]), encoding="utf-8")
    (message,) = refused(folder)
    assert message == (
        f"{folder}/model.safetensors: differs in 1 of its weights from the model that "
        "config.yaml describes (encoder.embeddings.tokens.weight); "
        "restore the config.yaml that the run was trained with"
    )


@pytest.mark.parametrize(
    ("key", "size"), [("dim: 24", 3 * 10**15), ("feedforward_dim: 17", 10**25)]
)
def test_a_size_that_no_machine_has_is_refused_at_once(folder, key, size):
    name, _ = key.split()
    changed(folder, f"  {key}\n", f"  {name} {size}\n")
    (message,) = refused(folder)
    assert message.startswith(f"{folder}/config.yaml:")
    assert message.endswith(f": model.{name} must be at most {2**29} ({size})")


def test_a_network_that_does_not_translate_is_refused(masked_run, tmp_path):
    run = RunDirectory(masked_run)
    shutil.copy(run.config_file, tmp_path)
    shutil.copytree(run.tokenizer, tmp_path / "tokenizer")
    shutil.copy(run.pointed("last") / "model.safetensors", tmp_path)
    assert refused(tmp_path) == [
        f"{tmp_path}: does not translate (model.kind masked_encoder); "
        "train an encoder_decoder that begins with it: training.init_from"
    ]


def test_a_config_that_is_none_has_its_usual_messages(folder):
    changed(folder, "num_heads: 3", "num_heads: 5")
    with pytest.raises(ConfigError, match=r"model\.num_heads: must divide dim 24 \(5\)"):
        read_plain_folder(folder)
