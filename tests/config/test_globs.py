"""Patterns of training files: which files they match, in which order, and what is refused."""

from pathlib import Path

import pytest

from tformer_cli.config.load import load_config, load_with_texts
from tformer_cli.errors import ConfigError

CONFIG = """\
data:
  source_language: en
  valid: {source: valid.en, target: valid.de}
  train:
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("valid", "b1", "a1", "a22", "news/x/train", "news/y/train", "[z]1"):
        for ending in ("en", "de", "tsv"):
            file = tmp_path / f"{name}.{ending}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return tmp_path


def config(folder: Path, *texts: str) -> Path:
    file = folder / "x.yaml"
    file.write_text(CONFIG + "".join(f"    - {text}\n" for text in texts), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a*", ["a1", "a22"]),
        ("?1", ["a1", "b1"]),
        ("a?", ["a1"]),
        ("news/*/train", ["news/x/train", "news/y/train"]),
        ("*/*/t*n", ["news/x/train", "news/y/train"]),
        ("[z]*", ["[z]1"]),
        ("a1", ["a1"]),
    ],
)
def test_a_pattern_is_a_text_for_each_match(folder: Path, pattern: str, names: list[str]) -> None:
    keys = "weight: 2, tags: [x]"
    file = config(
        folder,
        f"{{source: '{pattern}.en', target: '{pattern}.de', {keys}}}",
        f"{{pairs: '{pattern}.tsv', {keys}}}",
    )
    data = load_with_texts(file, []).data
    assert [text.files for text in data.train] == [
        *({"source": folder / f"{name}.en", "target": folder / f"{name}.de"} for name in names),
        *({"pairs": folder / f"{name}.tsv"} for name in names),
    ]
    assert {(text.weight, text.tags) for text in data.train} == {(2, ("x",))}  # type: ignore[union-attr]


def test_a_file_whose_name_has_a_star_is_no_pattern(folder: Path) -> None:
    (folder / "a*.tsv").touch()
    (text,) = load_config(config(folder, "{pairs: 'a*.tsv'}")).data.train
    assert text.files == {"pairs": folder / "a*.tsv"}


def test_a_match_without_a_counterpart_and_no_match_are_missing_files(folder: Path) -> None:
    (folder / "a22.de").unlink()
    (folder / "b1.en").unlink()
    file = config(
        folder, "{pairs: 'a*.tsv'}", "{source: '??.en', target: '??.de'}", "{pairs: 'q*'}"
    )
    with pytest.raises(ConfigError) as caught:
        load_with_texts(file, [])
    remedy = "correct the path, or set data.root"
    assert str(caught.value).split("\n") == [
        f"{file}:6: data.train.3.source: no such file ({folder}/b1.en); {remedy}",
        f"{file}:7: data.train.4.pairs: no such file ({folder}/q*); {remedy}",
    ]


def test_wildcards_of_both_sides_agree(folder: Path) -> None:
    file = config(folder, "{source: 'a*.en', target: 'a?.de'}")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value) == (
        f"{file}:5: data.train.0: has other wildcards in source than in target (a*.en, a?.de); "
        "write the same ones in the same order"
    )
