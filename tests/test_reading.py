"""The walk through the model names files and pieces that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "explanation" / "reading.md").read_text(encoding="utf-8")
# `file.py`: `One`; `file.py`: `one`, and `two` ... up to the end of the cell or sentence.
NAMED = re.compile(r"`([\w/]+\.py)`(?:: ([^|.;]*))?")


MODEL = {path.name: path for path in (ROOT / "tformer_cli" / "model").rglob("[a-z]*.py")}


def file_of(name: str) -> Path:
    return ROOT / "tformer_cli" / name if "/" in name else MODEL[name]


def pieces() -> list[tuple[str, str]]:
    """Every file with each name that stands behind its colon."""
    return [
        (file, piece)
        for file, names in NAMED.findall(TEXT)
        for piece in re.findall(r"`(\w+)`", names or "")
    ]


@pytest.mark.parametrize(
    "name", sorted({file for file, _ in NAMED.findall(TEXT)} - {"test_family.py"})
)
def test_every_file_is_there(name):
    path = ROOT / name if name.startswith(("tests/", "tformer_cli/")) else file_of(name)
    assert path.is_file()


@pytest.mark.parametrize(("file", "piece"), pieces())
def test_every_piece_stands_in_its_file(file, piece):
    tree = ast.parse(file_of(file).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.ClassDef
    assert piece in {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_the_walk_passes_every_file_of_the_model():
    named = {Path(file).name for file, _ in NAMED.findall(TEXT)}
    assert MODEL.keys() - named == set()
