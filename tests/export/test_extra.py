"""A package that an export needs is there, new enough, or one line says what to do."""

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tformer_cli.errors import UsageError
from tformer_cli.export.extra import EXTRAS, package

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
        extra: {name: ".".join(map(str, oldest)) for name, oldest in packages.items()}
        for extra, packages in EXTRAS.items()
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
        "ctranslate2: must be of version 4.8 or newer; got 4.7.1; "
        "pip install --upgrade 'tformer[ctranslate2]'"
    )


def test_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError) as raised:
        package("onnxscript", "onnx")
    assert str(raised.value) == "onnxscript: is not installed; pip install 'tformer[onnx]'"
