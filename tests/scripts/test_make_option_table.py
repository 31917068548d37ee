"""The option table: complete, and the one that stands in docs/reference/options.md."""

import dataclasses
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
from make_option_table import Row, docstrings, option_table, rows, with_option_table

from tformer_cli.config import schema
from tformer_cli.config.load import as_plain
from tformer_cli.config.schema.config import Config
from tformer_cli.config.schema.data import DataConfig
from tformer_cli.config.schema.fields import Bounds, Former
from tformer_cli.config.schema.text import ParallelText, TrainingText
from tformer_cli.errors import Problem

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


def keys_of(plain: object, path: str = "") -> set[str]:
    if not isinstance(plain, dict):
        return {path}
    return set().union(*(keys_of(v, f"{path}.{k}".removeprefix(".")) for k, v in plain.items()))


def test_the_page_holds_the_option_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_option_table(page) == page, "run `python scripts/make_option_table.py`"


def test_with_option_table_replaces_what_is_between_the_markers() -> None:
    before, after = "# Title\n\n<!-- options:begin -->\n", "<!-- options:end -->\nThe end.\n"
    fresh = before + option_table() + after
    assert with_option_table(before + "an old table\n" + after) == fresh
    assert with_option_table(fresh) == fresh


def test_every_field_of_the_schema_is_documented() -> None:
    modules = [
        importlib.import_module(f"{schema.__name__}.{module.name}")
        for module in pkgutil.iter_modules(schema.__path__)
        if module.name != "limits"
    ]
    classes = {
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, dataclasses.is_dataclass)
        if cls not in (Bounds, Former, Problem)
    }
    assert Config in classes
    for cls in classes:
        assert docstrings(cls).keys() == {part.name for part in dataclasses.fields(cls)}, cls


def test_docstrings_include_inherited_fields() -> None:
    own, inherited = ["weight", "tags", "extract"], list(docstrings(ParallelText))
    assert list(docstrings(TrainingText)) == [*inherited, *own]
    assert inherited == ["source_language", "target_language", "source", "target"]
    assert (
        docstrings(TrainingText)["target"]
        == "Target file: line n is the translation of source line n."
    )


def test_table_has_every_key_of_a_default_config() -> None:
    text = ParallelText(source=Path("a"), target=Path("b"))
    training_text = TrainingText(source=Path("a"), target=Path("b"))
    config = Config(data=DataConfig(train=(training_text,), valid=text))
    in_table = {row.key.split("`")[1] for row in rows(Config)}
    # A union that may be null has the row of its `kind`.
    in_table |= {key.removesuffix(".kind") for key in in_table}
    assert keys_of(as_plain(config)) <= in_table


@pytest.mark.parametrize(
    "row",
    [
        Row(
            "`training.clip_norm`",
            "`1.0`",
            "number > 0, or `null`",
            "Maximum gradient norm; larger gradients are scaled down. Null for no clipping.",
        ),
        Row(
            "`data.train`",
            "*required*",
            "list",
            "Training texts. `*` and `?` in a path make a text of each match, in sorted order.",
        ),
        Row(
            "**`data.valid`**",
            "",
            "",
            "Validation text, which selects the best checkpoint; or a list of texts, one for each "
            "direction, which select it by the mean of their scores.",
        ),
        Row("**`evaluation`**", "", "", "Metrics."),
        Row(
            "`training.schedule.factor` (`step`)",
            "`0.5`",
            "number > 0, < 1",
            "Factor of each reduction.",
        ),
        Row(
            "`tokenizer.lowercase` (`subword`, `char`)",
            "`none`",
            "`none`, `source`, `target`, `both`",
            "Sides to lowercase.",
        ),
        Row(
            "**`model.positions.kind`**",
            "`sinusoidal`",
            "`sinusoidal`, `learned`, `rotary`, `alibi`, `t5`, `none`",
            "Position encoding. "
            "`sinusoidal`: Sinusoidal encodings; sentences may be longer than in training. "
            "`learned`: Learned embeddings; longer lines are translated in pieces. "
            "`rotary`: Rotary embeddings (RoPE) of the queries and keys of self-attention. "
            "`alibi`: ALiBi: attention logits decrease linearly with distance, with a slope for "
            "each head. `t5`: T5's relative position bias: a learned number for each head and "
            "distance bucket. `none`: No positions: an encoder sees a bag of words.",
        ),
    ],
    ids=lambda row: row.key,
)
def test_rows_tell_default_values_and_meaning(row: Row) -> None:
    found = {other.key: other for other in rows(Config)}
    # The page's keys change with the schema; these stand for the shapes a key can have.
    assert found[row.key] == row


def test_row_escapes_what_would_end_a_cell() -> None:
    assert str(Row("a", "b", "c|d", "e")) == "| a | b | c\\|d | e |"
