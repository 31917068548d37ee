"""The starter: what it writes, what it leaves alone, and that it is a good configuration."""

from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tformer_cli.config.load import check_data_files, load_config
from tformer_cli.config.schema.data import ParallelText
from tformer_cli.config.schema.tokenizer import CharConfig, SubwordConfig
from tformer_cli.config.starter import ReadPairs, Starter, held_out, write_starter
from tformer_cli.errors import DataError, UsageError


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    lines = (path.read_text(encoding="utf-8").split("\n")[:-1] for path in (source, target))
    return zip(*lines, strict=True)


def written(path: Path, num_pairs: int) -> ParallelText:
    text = ParallelText(source=path.with_suffix(".en"), target=path.with_suffix(".de"))
    for file, word in ((text.source, "tree"), (text.target, "Bäume")):
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{word} {i}\n" for i in range(num_pairs)), encoding="utf-8")
    return text


def start(
    config: Path, text: ParallelText, read: ReadPairs = read_pairs, **options: object
) -> Starter:
    languages = {"source_language": "en", "target_language": "de"}
    return write_starter(config, text, read, **{**languages, **options})  # type: ignore[arg-type]


@given(st.integers(3, 50_000))
def test_held_out_pairs_are_evenly_spread(num_pairs: int) -> None:
    homes = held_out(num_pairs)
    num_each = max(1, min(1000, num_pairs // 20))
    assert list(homes.values()) == ["valid", "test"] * num_each
    places = [-1, *homes, num_pairs]
    assert places == sorted(set(places))
    gaps = [after - before for before, after in pairwise(list(homes))]
    assert max(gaps) - min(gaps) <= 1


def test_split_holds_each_pair_once_and_keeps_the_originals(tmp_path: Path) -> None:
    text = written(tmp_path / "in" / "corpus", 61)
    before = (text.source.read_bytes(), text.target.read_bytes())
    starter = start(tmp_path / "out" / "my.yaml", text)
    assert starter.num_pairs == {"train": 55, "valid": 3, "test": 3}
    pairs = {
        name: list(read_pairs(part.source, part.target)) for name, part in starter.texts.items()
    }
    assert {name: len(part) for name, part in pairs.items()} == starter.num_pairs
    assert sorted(chain.from_iterable(pairs.values())) == sorted(
        read_pairs(text.source, text.target)
    )
    assert pairs["train"] == sorted(pairs["train"], key=lambda pair: int(pair[0].split()[1]))
    assert (text.source.read_bytes(), text.target.read_bytes()) == before
    assert sorted(path.name for path in (tmp_path / "out" / "my.data").iterdir()) == [
        "test.source",
        "test.target",
        "train.source",
        "train.target",
        "valid.source",
        "valid.target",
    ]


def test_config_with_split_text_is_complete(tmp_path: Path) -> None:
    starter = start(tmp_path / "my.yaml", written(tmp_path / "corpus", 61))
    config = load_config(starter.config)
    check_data_files(config.data)
    assert (config.data.source_language, config.data.target_language) == ("en", "de")
    assert config.data.test == {"test": starter.texts["test"]}
    assert config.data.valid == starter.texts["valid"]
    assert "train: [{source: my.data/train.source," in starter.config.read_text(encoding="utf-8")


def test_config_with_given_validation_text_uses_the_files_where_they_are(tmp_path: Path) -> None:
    text = written(tmp_path / "texts" / "train", 7)
    valid = written(tmp_path / "texts" / "a, {b}: 'c' #d", 2)
    starter = start(
        tmp_path / "out" / "my.yaml",
        text,
        valid=valid,
        source_language="no",
        target_language="null",
    )
    assert starter.num_pairs == {"train": 7, "valid": 2}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["my.yaml"]
    config = load_config(starter.config)
    check_data_files(config.data)
    assert config.data.train[0].source == text.source
    assert config.data.valid == valid
    assert config.data.test == {}
    assert (config.data.source_language, config.data.target_language) == ("no", "null")


@pytest.mark.parametrize(
    ("num_pairs", "tokenizer", "dim", "max_steps"),
    [
        (500, CharConfig(), 128, 1000),
        (501, SubwordConfig(vocab_size=1000), 128, 2000),
        (5_001, SubwordConfig(vocab_size=8000), 256, 6000),
        (50_001, SubwordConfig(vocab_size=10000), 512, 30_000),
        (1_000_001, SubwordConfig(vocab_size=32000), 512, 100_000),
    ],
)
def test_sizes_grow_with_the_text(
    tmp_path: Path, num_pairs: int, tokenizer: object, dim: int, max_steps: int
) -> None:
    text = written(tmp_path / "corpus", 1)
    pairs = [("a", "b")] * num_pairs
    start(tmp_path / "my.yaml", text, lambda source, target: pairs, valid=text)
    config = load_config(tmp_path / "my.yaml")
    assert config.tokenizer == tokenizer
    assert config.model.dim == dim
    assert config.training.max_steps == max_steps


def test_a_text_of_many_characters_has_a_vocabulary_that_holds_them(tmp_path: Path) -> None:
    text = written(tmp_path / "corpus", 1)
    pairs = [(chr(0x4E00 + i), chr(0x5E00 + i)) for i in range(1000)]
    starter = start(tmp_path / "my.yaml", text, lambda source, target: pairs, valid=text)
    assert starter.num_characters == 2000
    assert load_config(starter.config).tokenizer == SubwordConfig(vocab_size=4300)


@pytest.mark.parametrize("name", ["~root", "a\x85b", "x # y\nz", "x # y\u2028z"])
def test_names_that_yaml_or_a_shell_would_read_otherwise(tmp_path: Path, name: str) -> None:
    text = written(tmp_path / name, 3)
    starter = start(tmp_path / "my.yaml", text, valid=text)
    assert load_config(starter.config).data.valid == text


def test_a_text_that_changes_while_it_is_read_leaves_nothing(tmp_path: Path) -> None:
    text = written(tmp_path / "corpus", 9)
    sizes = iter((9, 0))

    def shrinking(source: Path, target: Path) -> list[tuple[str, str]]:
        return [("a", "b")] * next(sizes)

    with pytest.raises(DataError) as caught:
        start(tmp_path / "my.yaml", text, shrinking)
    assert str(caught.value) == (
        f"{text.source}: the text changed while it was read; run the same command again"
    )
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".en", ".de"}


def test_every_key_of_the_starter_has_a_comment(tmp_path: Path) -> None:
    starter = start(tmp_path / "my.yaml", written(tmp_path / "corpus", 9))
    lines = starter.config.read_text(encoding="utf-8").split("\n")
    silent = [line.split(":")[0].strip() for line in lines if line and "#" not in line]
    # Headings, and counts that say what they are.
    assert silent == ["model", "num_encoder_layers", "num_decoder_layers", "training"]


def test_files_that_are_there_are_kept_unless_forced(tmp_path: Path) -> None:
    text = written(tmp_path / "corpus", 9)
    config = tmp_path / "my.yaml"
    config.write_text("mine\n", encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        start(config, text)
    remedy = "choose another --output, or add --force"
    assert str(raised.value) == f"{config}: is there already; {remedy}"
    assert config.read_text(encoding="utf-8") == "mine\n"
    assert not (tmp_path / "my.data").exists()
    start(config, text, overwrite=True)
    config.unlink()
    with pytest.raises(UsageError) as raised:
        start(config, text)
    assert str(raised.value) == f"{tmp_path}/my.data/train.source: is there already; {remedy}"


def test_given_texts_are_never_replaced(tmp_path: Path) -> None:
    parts = start(tmp_path / "my.yaml", written(tmp_path / "corpus", 9)).texts
    with pytest.raises(UsageError) as raised:
        start(tmp_path / "my.yaml", parts["train"], overwrite=True)
    assert str(raised.value) == (
        f"{parts['train'].source}: is one of the given texts, and would be lost; "
        "choose another --output"
    )


def test_text_too_short_to_split_is_refused(tmp_path: Path) -> None:
    text = written(tmp_path / "corpus", 2)
    with pytest.raises(DataError) as raised:
        start(tmp_path / "my.yaml", text)
    assert str(raised.value) == (
        f"{text.source}: needs at least 3 lines, for training, validation and test; got 2; "
        "give --valid-source and --valid-target"
    )
    assert start(tmp_path / "my.yaml", written(tmp_path / "corpus", 3)).num_pairs == {
        "train": 1,
        "valid": 1,
        "test": 1,
    }


def test_empty_text_is_refused(tmp_path: Path) -> None:
    text = written(tmp_path / "corpus", 3)
    valid = written(tmp_path / "valid", 0)
    with pytest.raises(DataError) as raised:
        start(tmp_path / "my.yaml", text, valid=valid)
    assert str(raised.value) == f"{valid.source}: has no lines"
