"""Formats: an export is there when it has passed its check; packages are there and new enough."""

import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from exportable import BASE, LINES, exported, lively

from tformer_cli.config.schema.model import LatentConfig, RotaryPositions
from tformer_cli.errors import ConfigError, DataError, ExportError, StorageError, UsageError
from tformer_cli.export.check import CheckText, check_export
from tformer_cli.export.ctranslate2 import CTranslate2Format
from tformer_cli.extras import EXTRAS, package

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")

EXACT = CTranslate2Format()


@pytest.fixture
def model():
    return lively(BASE)


@pytest.fixture
def text(model):
    return CheckText.of(LINES, model.tokenizers, name="valid.en", max_length=20)


def with_another(name: str, index: int):
    """The same model, except for one number in one of its weights."""
    changed = lively(BASE)
    with torch.no_grad():
        dict(changed.model.named_parameters())[name].view(-1)[index] += 0.1
    return changed


def test_check_text_leaves_out_what_has_no_tokens_or_too_many(model):
    text = CheckText.of(["ab", "", "abcdefg", "c"], model.tokenizers, name="x", max_length=3)
    assert text.lines == ("ab", "c")
    assert text.numbers == (1, 4)
    assert [len(source) for source in text.sources] == [3, 2]


def test_text_without_a_line_to_check_by_is_refused(model):
    with pytest.raises(DataError) as raised:
        CheckText.of(["", "abcdef"], model.tokenizers, name="valid.en", max_length=3)
    assert str(raised.value) == (
        "valid.en: has no line of 1 to 3 tokens to check the export by; give another text"
    )


def test_export_that_passes_appears_as_a_whole(model, text, tmp_path):
    folder, done = tmp_path / "new" / "model", []
    with exported(model, EXACT, folder, text, on_done=done.append) as (temporary, comparisons):
        assert not folder.exists()
        (temporary / "README.md").write_text("card")
    assert sorted(file.name for file in folder.iterdir()) == [
        "README.md",
        "config.json",
        "config.yaml",
        "model.bin",
        "shared_vocabulary.json",
        "tformer.json",
        "tokenizer",
    ]
    assert [comparison.num_equal for comparison in comparisons] == [7, 7]
    assert sum(done) == 4 * 7


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("encoder.layers.0.self_attention.query.weight", 3),
        ("encoder.layers.1.feedforward.down.bias", 3),
        ("encoder.embeddings.tokens.weight", 20 * BASE.dim + 3),
        ("decoder.layers.1.cross_attention.value.weight", 3),
        ("decoder.layers.0.feedforward_norm.weight", 3),
        ("decoder.norm.bias", 3),
    ],
)
def test_one_wrong_number_fails_the_check(model, text, tmp_path, name, index):
    EXACT.write(with_another(name, index), tmp_path)
    with pytest.raises(ExportError, match="has another translation, or another score for it"):
        check_export(model, EXACT, tmp_path, text)


def test_failed_check_says_which_line_and_leaves_nothing(model, text, tmp_path, monkeypatch):
    changed = with_another("decoder.norm.bias", 3)
    write = CTranslate2Format.write
    monkeypatch.setattr(
        CTranslate2Format, "write", lambda form, _, folder: write(form, changed, folder)
    )
    with pytest.raises(ExportError) as raised, exported(model, EXACT, tmp_path / "model", text):
        raise AssertionError("it has passed")
    first, _, rest = str(raised.value).partition(" (")
    assert first == ("valid.en:1: CTranslate2 has another translation, or another score for it")
    assert " in place of '" in rest
    assert "the best of the line; " in rest
    assert rest.endswith(
        " differ in all); nothing was written: export another checkpoint, and report this one"
    )
    assert list(tmp_path.iterdir()) == []


def test_rounded_numbers_may_differ(model, text, tmp_path):
    with exported(model, CTranslate2Format("int8"), tmp_path / "model", text) as (_, comparisons):
        assert any(comparison.differences for comparison in comparisons)
    assert (tmp_path / "model" / "model.bin").is_file()


def test_unsupported_keys_come_before_anything_is_written(text, tmp_path):
    config = replace(
        BASE, positions=RotaryPositions(), latent=LatentConfig(kv_lora_rank=6, rope_head_dim=4)
    )
    with (
        pytest.raises(ConfigError, match=r"model\.latent"),
        exported(lively(config), EXACT, tmp_path / "model", text),
    ):
        raise AssertionError("it has been written")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_there_is_left_alone(model, text, tmp_path):
    with pytest.raises(UsageError) as raised, exported(model, EXACT, tmp_path, text):
        raise AssertionError("it has been written")
    assert str(raised.value) == f"{tmp_path}: already exists; remove it, or name another"
    assert list(tmp_path.iterdir()) == []


def test_folder_that_appears_while_the_export_is_checked_is_left_alone(model, text, tmp_path):
    folder = tmp_path / "model"

    def appear(count: int) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "thesis.tex").write_text("thesis")

    with (
        pytest.raises(UsageError) as raised,
        exported(model, EXACT, folder, text, on_done=appear),
    ):
        pass
    assert str(raised.value) == f"{folder}: already exists; remove it, or name another"
    assert sorted(tmp_path.rglob("*")) == [folder, folder / "thesis.tex"]


def test_full_disk_leaves_nothing(model, text, tmp_path, small_files):
    with (
        small_files(2000),
        pytest.raises(StorageError),
        exported(model, EXACT, tmp_path / "model", text),
    ):
        raise AssertionError("it has been written")
    assert list(tmp_path.iterdir()) == []


def test_missing_ctranslate2_is_one_line_and_leaves_nothing(model, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UsageError) as raised, exported(model, EXACT, tmp_path / "model", text):
        raise AssertionError("it has been written")
    assert str(raised.value) == "ctranslate2: is not installed; pip install 'tformer[ctranslate2]'"
    assert list(tmp_path.iterdir()) == []


PROJECT = tomllib.loads(
    (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
)


def test_oldest_versions_are_those_of_the_project():
    declared = {
        extra: dict(re.findall(r"([\w-]+)>=([\d.]+)", " ".join(requirements)))
        for extra, requirements in PROJECT["project"]["optional-dependencies"].items()
        if extra in EXTRAS
    }
    assert declared == {
        name: {
            each: ".".join(map(str, oldest)) for each, oldest in extra.packages.items() if oldest
        }
        for name, extra in EXTRAS.items()
    }


@pytest.mark.parametrize("version", ["1.20.0", "1.20", "1.100.1", "2.0.0rc1", "1.21.dev3+cpu"])
def test_package_that_is_new_enough_is_returned(version, monkeypatch):
    known = SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "onnxruntime", known)
    assert package("onnxruntime", "onnx") is known


def test_old_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", SimpleNamespace(__version__="4.7.1"))
    with pytest.raises(UsageError) as raised:
        package("ctranslate2", "ctranslate2")
    assert str(raised.value) == (
        "ctranslate2: must be of version 4.8 or newer (4.7.1); "
        "pip install --upgrade 'tformer[ctranslate2]'"
    )


def test_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError) as raised:
        package("onnxscript", "onnx")
    assert str(raised.value) == "onnxscript: is not installed; pip install 'tformer[onnx]'"
