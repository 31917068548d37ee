"""A model from elsewhere becomes a run: of a plain folder, bit for bit the run that it was of."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exportable import BASE, CHARACTERS, content_of
from m2m import save_m2m
from t5 import CASES, save_t5
from toy import write_languages

from tformer_cli import Translator, train
from tformer_cli.config.load import load_config
from tformer_cli.config.schema.tokenizer import CharConfig
from tformer_cli.errors import CheckpointError, StorageError, TformerError
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.export.plain import PlainFormat
from tformer_cli.export.run import import_run, read_model
from tformer_cli.model.build import build_model
from tformer_cli.storage.run_directory import RunDirectory
from tformer_cli.storage.trained_model import TrainedModel, load_trained_model
from tformer_cli.text.tokenizer import build_tokenizers


@pytest.fixture
def plain(toy_run, tmp_path) -> Path:
    """A plain folder of the best checkpoint of a run."""
    folder = tmp_path / "plain"
    folder.mkdir()
    PlainFormat().write(load_trained_model(RunDirectory(toy_run)), folder)
    return folder


def refused(folder: Path, run: Path) -> list[str]:
    """Return the messages of an import that fails, and see that it leaves nothing behind."""
    before = sorted(run.parent.rglob("*"))
    with pytest.raises(TformerError) as caught:
        import_run(folder, RunDirectory(run))
    assert sorted(run.parent.rglob("*")) == before
    return [str(problem) for problem in caught.value.problems]


def test_an_imported_run_is_the_original_bit_for_bit(toy_run, plain, tmp_path):
    run = RunDirectory(tmp_path / "run")
    read = import_run(plain, run)
    original = load_trained_model(RunDirectory(toy_run))
    loaded = load_trained_model(run)
    assert content_of(loaded) == content_of(read) == content_of(original)
    for (name, weight), (_, expected) in zip(
        loaded.model.named_parameters(), original.model.named_parameters(), strict=True
    ):
        assert torch.equal(weight, expected), name
    for name in ("model", "tokenizer", "training", "decoding", "evaluation"):
        assert getattr(loaded.config, name) == getattr(original.config, name)
    assert run.pointed("best") == run.pointed("last") == run.checkpoint(0)


@pytest.mark.parametrize("changes", [(), ("seed=7",)])
def test_an_imported_run_is_no_training_to_resume(toy_run, plain, tmp_path, changes):
    run = RunDirectory(tmp_path / "run")
    import_run(plain, run)
    root = load_config(toy_run / "config.yaml").data.texts()["valid"].source.parent
    config = load_config(run.config_file, [f"data.root={root}", *changes])
    with pytest.raises(CheckpointError) as caught:
        train(config, run.path)
    assert str(caught.value) == (
        f"{run.path}: has a model, and no training that could be resumed; "
        "train its weights further: `training.init_from=RUN` `run=NEW`"
    )


@pytest.mark.parametrize("form", [PlainFormat(), CTranslate2Format()], ids=["plain", "ct2"])
def test_an_imported_run_looks_for_its_text_beside_its_config(toy_run, form, tmp_path):
    form.save(load_trained_model(RunDirectory(toy_run)), tmp_path / "folder")
    import_run(tmp_path / "folder", RunDirectory(tmp_path / "run"))
    texts = load_config(toy_run / "config.yaml").data.texts()
    corpus, name = texts["valid"].source.parent, texts["valid"].source.name
    file = tmp_path / "run" / "config.yaml"
    assert load_config(file).data.valid.source == tmp_path / "run" / name
    assert load_config(file, [f"data.root={corpus}"]).data.texts() == texts


def plain_of(trained: TrainedModel, folder: Path) -> Path:
    folder.mkdir()
    PlainFormat().write(trained, folder)
    return folder


def test_the_texts_of_an_import_are_in_the_languages_that_are_named(toy_run, tmp_path):
    trained = load_trained_model(RunDirectory(toy_run))
    data = trained.config.data
    own = {"source_language": data.source_language, "target_language": data.target_language}
    named = replace(data, train=tuple(replace(text, **own) for text in data.train))
    trained = replace(trained, config=replace(trained.config, data=named))
    folder = plain_of(trained, tmp_path / "plain")
    import_run(folder, RunDirectory(tmp_path / "run"), target_language="ja")
    read = load_config(tmp_path / "run" / "config.yaml").data
    assert {read.direction_of(text) for text in read.texts().values()} == {
        (data.source_language, "ja")
    }


@pytest.mark.parametrize("side", ["source", "target"])
def test_languages_that_tags_tell_apart_keep_their_names(side, tmp_path):
    config = load_config(write_languages(tmp_path / "data"))
    config = replace(config, model=BASE, tokenizer=CharConfig())
    tokenizers = build_tokenizers(config.tokenizer, lambda: CHARACTERS, seed=1)
    size = tokenizers.source.size
    model = build_model(BASE, source_size=size, target_size=size, seed=1)
    folder = plain_of(TrainedModel(config, tokenizers, model, step=3), tmp_path / "plain")
    with pytest.raises(TformerError) as caught:
        import_run(folder, RunDirectory(tmp_path / "run"), **{f"{side}_language": "cc"})
    assert str(caught.value) == (
        f"`{side}_language`: cannot be changed in a model of several languages (cc); leave it "
        "out, and name it when you translate: `to`"
    )
    assert not (tmp_path / "run").exists()


def test_a_plain_folder_with_language_tokens_has_no_other_languages(tmp_path):
    save_m2m(tmp_path / "nllb", "nllb")
    folder = plain_of(read_model(tmp_path / "nllb"), tmp_path / "plain")
    with pytest.raises(TformerError) as caught:
        read_model(folder, target_language="xx")
    assert str(caught.value) == (
        "`target_language`: is in a language that the vocabulary lacks (xx); choose from: "
        "eng_Latn, deu_Latn, zho_Hans"
    )
    import_run(folder, RunDirectory(tmp_path / "run"), target_language="zho_Hans")
    assert Translator.load(tmp_path / "run").direction.languages == ("eng_Latn", "zho_Hans")


def test_a_plain_folder_with_prefixes_has_no_other_targets(tmp_path):
    save_t5(tmp_path / "t5", **CASES["madlad"])
    folder = plain_of(read_model(tmp_path / "t5"), tmp_path / "plain")
    with pytest.raises(TformerError, match="has no prefix in this model"):
        read_model(folder, target_language="xx")
    run = RunDirectory(tmp_path / "run")
    import_run(folder, run, source_language="en", target_language="fr")
    assert Translator.load(run.path).direction.languages == ("en", "fr")


def test_an_imported_run_needs_its_folder_no_more(plain, tmp_path):
    import_run(plain, RunDirectory(tmp_path / "run"))
    shutil.rmtree(plain)
    assert load_trained_model(RunDirectory(tmp_path / "run")).step == 0


def test_languages_can_be_named(plain, tmp_path):
    run = RunDirectory(tmp_path / "run")
    import_run(plain, run, source_language="fr", target_language="ja")
    data = load_config(run.config_file).data
    assert (data.source_language, data.target_language) == ("fr", "ja")


def test_what_is_no_folder_is_named(tmp_path):
    assert refused(tmp_path / "nothing", tmp_path / "run") == [
        f"{tmp_path}/nothing: no such folder; name the folder of a model"
    ]


def test_a_foreign_folder_is_named(tmp_path):
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    assert refused(folder, tmp_path / "run") == [
        f"{folder}: holds no model: none of model.bin, config.yaml, "
        "config.json and decoder.yml is there; name a folder for CTranslate2, one that "
        "`tformer export --format safetensors` has written, "
        "or a Marian, M2M-100, NLLB, mBART or T5 model as transformers or Marian saves it"
    ]


def test_a_run_is_no_plain_folder(toy_run, tmp_path):
    assert refused(toy_run, tmp_path / "run") == [
        f"{toy_run}: is a run folder already; "
        "use it as it is: its path is what commands take as RUN"
    ]


def test_folders_beside_what_can_be_imported_say_what_to_name(tmp_path):
    (tmp_path / "a.argosmodel").touch()
    (message,) = refused(tmp_path, tmp_path / "run")
    assert message.endswith(f"; name the package in it: {tmp_path}/a.argosmodel")
    (tmp_path / "encoder.onnx").touch()
    (tmp_path / "config.json").touch()
    assert refused(tmp_path, tmp_path / "run") == [
        f"{tmp_path}: holds ONNX graphs, which cannot be imported; "
        "use the run that they were exported from, or another format"
    ]


def test_a_run_that_is_there_is_left_alone(plain, tmp_path):
    (tmp_path / "run").mkdir()
    assert refused(plain, tmp_path / "run") == [
        f"{tmp_path}/run: already exists; remove it, or name another"
    ]


def test_damaged_weights_leave_nothing_half_written(plain, tmp_path):
    file = plain / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    (message,) = refused(plain, tmp_path / "run")
    assert message.startswith(f"{file}: is damaged or cut short (")


def test_a_full_disk_leaves_nothing_half_written(plain, tmp_path, small_files):
    with small_files(2000), pytest.raises(StorageError):
        import_run(plain, RunDirectory(tmp_path / "run"))
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]
