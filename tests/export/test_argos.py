"""Argos packages: read with CTranslate2's translations, written as Argos Translate loads them."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from exportable import BASE, trained
from test_ctranslate2 import random_model
from test_ctranslate2_import import MODEL, SEARCHES, assert_equal, opennmt, refused, write

from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig
from tformer_cli.errors import ConfigError
from tformer_cli.export.argos import ArgosFormat, read_argos
from tformer_cli.export.check import CheckText, check_export
from tformer_cli.storage.trained_model import TrainedModel
from tformer_cli.text.tokenizer import build_tokenizers

ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

PAIRS = [("the old dog sleeps", "der alte Hund schläft"), ("a cat", "eine Katze")] * 20
METADATA = {"from_code": "en", "to_code": "de", "type": "translate"}


def package(file: Path, folder: Path, *, metadata: object = METADATA) -> Path:
    """Write a package of a folder for CTranslate2."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("en_de/metadata.json", json.dumps(metadata))
        archive.writestr("en_de/sentencepiece.model", MODEL)
        for name in ("model.bin", "config.json", "shared_vocabulary.json"):
            archive.write(folder / name, f"en_de/model/{name}")
    return file


def subwords(**changes) -> TrainedModel:
    settings = {"vocab_size": 45, "byte_fallback": False} | changes
    return untrained(SubwordConfig(**settings))


def untrained(config: SubwordConfig | CharConfig) -> TrainedModel:
    tokenizers = build_tokenizers(config, lambda: PAIRS, 1)
    shape = replace(BASE, tie_embeddings="all" if config.shared else "none")
    model = trained(random_model(shape, tokenizers), tokenizers, shape)
    return replace(model, config=replace(model.config, tokenizer=config))


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_a_package_translates_as_its_folder(search, tmp_path):
    folder = write(opennmt(), tmp_path / "folder")
    read = read_argos(package(tmp_path / "x.argosmodel", folder))
    assert (read.config.data.source_language, read.config.data.target_language) == ("en", "de")
    assert not read.config.model.source_eos
    assert_equal(folder, read, search)


def test_a_package_is_checked_and_read_again(tmp_path):
    model, form = subwords(), ArgosFormat()
    lines = [source for source, _ in PAIRS[:2]]
    text = CheckText.of(lines, model.tokenizers, name="valid", max_length=20)
    with form.written(model, tmp_path / "out") as folder:
        checks = check_export(model, form, folder, text)
    assert [check.num_equal for check in checks] == [2, 2]
    (file,) = (tmp_path / "out").iterdir()
    assert file.name == "translate-en_de-1_0.argosmodel"
    with zipfile.ZipFile(file) as archive:
        root = "translate-en_de-1_0/"
        assert {name.removeprefix(root) for name in archive.namelist()} == {
            *("model/", "metadata.json", "sentencepiece.model"),
            *("model/model.bin", "model/config.json", "model/shared_vocabulary.json"),
        }
        content = archive.read(f"{root}sentencepiece.model")
    again = read_argos(file)
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    for line in lines:
        pieces = processor.encode(line, out_type=str)
        for source in (model.tokenizers.source, again.tokenizers.source):
            assert source.tokens(source.encode(line)) == pieces
    expected = dict(model.model.named_parameters())
    for name, weight in again.model.named_parameters():
        if name != "output.bias":
            assert weight.equal(expected[name]), name


@pytest.mark.parametrize(
    ("changes", "key"), [({"shared": False}, "tokenizer.shared"), ({"lowercase": "both"}, "lower")]
)
def test_what_a_package_cannot_be_is_named(changes, key, tmp_path):
    with pytest.raises(ConfigError, match=key):
        ArgosFormat().save(subwords(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("shared", "got"), [(True, "char, shared"), (False, "char, not shared")])
def test_characters_are_refused_as_what_they_are(shared, got, tmp_path):
    with pytest.raises(ConfigError, match=rf"tokenizer.shared: .* \({got}\)"):
        ArgosFormat().save(untrained(CharConfig(shared=shared)), tmp_path / "out")


def test_what_comes_before_a_source_is_refused(tmp_path):
    model = subwords()
    into_two = [
        replace(text, source_language="en", target_language=target)
        for text in model.config.data.train[:1]
        for target in ("de", "fr")
    ]
    prefixes = {"de": "to German: "}
    for changes, message in (
        ({"train": tuple(into_two)}, "data.train: must be of one target language in an Argos"),
        ({"prefixes": prefixes}, r"data.prefixes: must be null in an Argos package \(to German: "),
    ):
        data = replace(model.config.data, **changes)
        with pytest.raises(ConfigError, match=message):
            ArgosFormat().save(replace(model, config=replace(model.config, data=data)), tmp_path)


def test_damaged_packages_are_named(tmp_path):
    folder = write(opennmt(), tmp_path / "folder")
    file = package(tmp_path / "x.argosmodel", folder)
    content = file.read_bytes()
    for size in (0, 30, len(content) // 2):
        file.write_bytes(content[:size])
        assert refused(file)[0].startswith("FOLDER: is no zip file, or is damaged (")
    broken = bytearray(content)
    broken[len(content) // 2] ^= 255
    file.write_bytes(broken)
    assert refused(file)[0].startswith("FOLDER: is no zip file, or is damaged (Bad CRC-32")


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_damaged_compression_is_named(compression, tmp_path):
    file = tmp_path / "x.argosmodel"
    metadata = json.dumps(METADATA | {str(number): number for number in range(300)})
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("en_de/metadata.json", metadata)
    content = bytearray(file.read_bytes())
    # Behind the header of the file in the zip, which is 30 bytes and its name.
    content[80:120] = b"\xff" * 40
    file.write_bytes(content)
    assert refused(file)[0].startswith("FOLDER: is no zip file, or is damaged (")


def test_packages_do_not_grow_without_limit(tmp_path):
    file = tmp_path / "x.argosmodel"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("en_de/metadata.json", json.dumps(METADATA))
        archive.writestr("en_de/other", bytes(10**6))
    assert refused(file)[0] == "FOLDER: has no model/model.bin; fetch the package again"
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("en_de/model/model.bin", bytes(10**6))
    assert refused(file)[0].startswith("FOLDER: unpacks to more than 100 times its size (1,000,")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"type": "sbd"}, "FOLDER: metadata.json: type: must be translate (sbd)"),
        ({"target_prefix": "__de__"}, "FOLDER: metadata.json: target_prefix: must be empty (__de"),
        ([], "FOLDER/metadata.json: must be a JSON object (list)"),
    ],
)
def test_packages_of_other_kinds_are_named(metadata, message, tmp_path):
    folder = write(opennmt(), tmp_path / "folder")
    assert refused(package(tmp_path / "x.argosmodel", folder, metadata=metadata))[0].startswith(
        message
    )


def test_packages_without_a_part_are_named(tmp_path):
    file = tmp_path / "x.argosmodel"
    parts: dict[str, str] = {}
    for name, content, message in (
        ("other", "", "has no metadata.json in one folder"),
        ("a/metadata.json", "{}", "has no model/model.bin"),
        ("a/bpe.model", "", "has a tokenizer of another kind than sentencepiece (bpe.model)"),
    ):
        parts[name] = content
        with zipfile.ZipFile(file, "w") as archive:
            for each in parts.items():
                archive.writestr(*each)
        assert refused(file)[0].startswith(f"FOLDER: {message}")


def test_argos_translate_reads_a_package(tmp_path):
    argos = pytest.importorskip("argostranslate.package", reason="Argos is not installed")
    model = subwords()
    ArgosFormat().save(model, tmp_path / "out")
    (file,) = (tmp_path / "out").iterdir()
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path)
    package = argos.Package(tmp_path / file.stem)
    assert (package.from_code, package.to_code) == ("en", "de")
    tokens = package.tokenizer.encode("a cat")
    source = model.tokenizers.source
    assert tokens == source.tokens(source.encode("a cat"))
    assert package.tokenizer.decode(tokens) == "a cat"
